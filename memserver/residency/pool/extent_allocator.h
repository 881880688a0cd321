// ExtentAllocator: the free byte ranges of the host pool. Best fit, exact sizes, no memory is
// touched. Each call costs O(log n) in the number of free ranges, of which one user's jobs can make
// many.
//
// One thread (the serve loop). Units are bytes; sizes and offsets are multiples of 4 KiB.
// Invariants:
//  1. taken and free ranges never overlap and together cover all pieces;
//  2. two free ranges of one piece are never adjacent (they are merged);
//  3. no range crosses the border of a piece (a registration piece of CUDA or io_uring).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace tidepool::memserver {

// A range of the pool.
struct FreeRange {
  uint64_t offset = 0, bytes = 0;
};

class ExtentAllocator {
 public:
  // Pieces are consecutive: piece i starts at the sum of the sizes before it.
  explicit ExtentAllocator(std::span<const uint64_t> piece_bytes);

  // Takes `bytes` and returns their offset: the start of the smallest range that has them; nothing
  // if none has.
  std::optional<uint64_t> Take(uint64_t bytes);
  // Takes this range; false if any byte of it is taken, or if it does not lie inside one piece.
  bool TakeAt(uint64_t offset, uint64_t bytes);
  // Returns exactly what a Take of `bytes` returned; anything else is a bug and stops the process.
  void Release(uint64_t offset, uint64_t bytes);

  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t free_bytes() const { return free_bytes_; }
  // The largest range that can be taken at once.
  uint64_t largest_free_bytes() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  struct Piece {
    uint64_t begin = 0, end = 0;
    std::map<uint64_t, uint64_t> free;  // offset -> bytes
  };
  Piece& PieceOf(uint64_t offset);
  void AddFree(Piece* piece, uint64_t offset, uint64_t bytes);
  std::map<uint64_t, uint64_t>::iterator EraseFree(Piece* piece,
                                                   std::map<uint64_t, uint64_t>::iterator it);

  std::vector<Piece> pieces_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // bytes and offset of each free range
  uint64_t total_bytes_ = 0;
  uint64_t free_bytes_ = 0;
};

}  // namespace tidepool::memserver

// ExtentAllocator: which byte ranges of the host pool are free. First fit, exact sizes, no memory
// is touched.
//
// One thread (the serve loop). Units are bytes; sizes and offsets are multiples of 4 KiB.
// Invariants:
//  1. taken and free ranges never overlap and together cover all pieces;
//  2. two free ranges of one piece are never adjacent (they are merged);
//  3. no range crosses the border of a piece (a registration piece of CUDA or io_uring).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace tidepool::memserver {

// A range of the pool, free or taken out of what was.
struct FreeRange {
  uint64_t offset = 0, bytes = 0;
};

class ExtentAllocator {
 public:
  // Pieces lie one behind the other: piece i starts at the sum of the sizes before it.
  explicit ExtentAllocator(std::span<const uint64_t> piece_bytes);

  // Offset of `bytes` free bytes (the first that fit), now taken; nothing when no free range is
  // large enough.
  std::optional<uint64_t> Take(uint64_t bytes);
  // Goes through the free ranges in order. `want` is told the bytes of each and says how many of
  // them, from the beginning on, are taken (0: none), or nothing, where it wants no more. Appends
  // what was taken.
  void TakeAcross(const std::function<std::optional<uint64_t>(uint64_t available)>& want,
                  std::vector<FreeRange>* taken);
  // Takes this range; false when any byte of it is taken, or when it does not lie inside one piece.
  bool TakeAt(uint64_t offset, uint64_t bytes);
  // Gives back exactly what a Take of `bytes` returned; anything else is a bug and stops the
  // process.
  void Release(uint64_t offset, uint64_t bytes);

  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t free_bytes() const { return free_bytes_; }
  // The largest range that can be taken at once.
  uint64_t largest_free_bytes() const;

 private:
  struct Piece {
    uint64_t begin = 0, end = 0;
    std::map<uint64_t, uint64_t> free;  // offset -> bytes
  };
  Piece& PieceOf(uint64_t offset);

  std::vector<Piece> pieces_;
  uint64_t total_bytes_ = 0;
  uint64_t free_bytes_ = 0;
};

}  // namespace tidepool::memserver

// HostPool: the host memory that all jobs share: sealed memfds, mapped once, with every page
// touched before the first job comes.
//
// Made before the serve loop starts (any thread); afterwards Take and Release belong to the serve
// loop. The bytes of an extent belong to its taker; workers and streams may touch them as long as
// the owner keeps it. Invariants: the budget was checked before the first page was touched; an
// extent lies in one memfd (piece_bytes_max at most); the mapping is not inherited by fork and not
// part of core dumps; nobody can shrink or grow the memfds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/system/system_memory.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "memserver/residency/pool/extent_allocator.h"
#include "memserver/residency/pool/pool_runs.h"
#include "memserver/residency/pool/pool_pages.h"

namespace tidepool::memserver {

// A range of the pool.
struct Extent {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the pool; identifies the place across restarts
};

// How a pool lies in its memfds: consecutively, in pieces of piece_bytes except the last; the
// server's own bytes come first.
struct PoolGeometry {
  uint64_t bytes = 0;  // for jobs
  uint64_t own_bytes = 0;
  uint64_t piece_bytes = 0;
};

// One memfd of the pool.
struct PoolPiece {
  int fd = -1;  // owned by the pool
  uint64_t bytes = 0;
};

// What the system actually provided.
struct PoolFacts {
  uint64_t huge_page_bytes = 0;  // mapped with 2 MiB pages; 0 if it has none
  bool reserved_pages = false;   // in huge pages that were reserved
  std::vector<NodeShare> nodes;  // where the pages lie; empty if unknown
  double touch_seconds = 0;      // time to make all pages present; 0: adopted, or no clock
  uint32_t touch_threads = 0;
};

// How a pool is made.
struct HostPoolOptions {
  uint64_t bytes = 0;  // for jobs; rounded up to 4 KiB
  // In addition, for the server's own kept records (undo areas)
  uint64_t own_bytes = 0;
  uint64_t piece_bytes_max = 64 * kGiB;   // largest range that one CUDA registration takes
  uint64_t left_over_bytes = 256 * kMiB;  // what the machine must have left afterwards
  uint32_t touch_threads = 0;             // 0: one per CPU, at most 16
  bool huge_pages = true;                 // ask for 2 MiB pages
  bool reserved_pages = false;            // use reserved ones, if there are enough
  // NUMA nodes for the pages; none: the system decides. Each piece lies on one of them in turn, or
  // on all, page by page.
  std::vector<uint32_t> nodes;
  bool interleave = true;
  const Clock* clock = nullptr;  // measures touching; null: not measured
  // Called on the calling thread while pages are touched.
  std::function<void(uint64_t bytes_touched, uint64_t bytes_total)> progress;
};

class HostPool {
 public:
  // Reserves a pool. Options that the system does not grant are logged. Blocks for about 0.3 to 3
  // s/GiB and thread. Errors: kHostMemoryShort (before anything is touched), kMemoryMapFailed.
  static Result<std::unique_ptr<HostPool>> Reserve(const HostPoolOptions& options,
                                                   const MemoryBudget& budget);
  // The pool of a server that has ended, from its memfds in order. Nothing is touched (about 60
  // ms/GiB later, as pages are used). Nothing is taken yet: TakeAt returns to the jobs what is
  // theirs. Errors: kKeptMemoryBad (descriptors that do not fit), kMemoryMapFailed.
  static Result<std::unique_ptr<HostPool>> Adopt(std::vector<UniqueFd> pieces,
                                                 const PoolGeometry& geometry);
  // The total_bytes() of a pool with these options.
  static uint64_t BytesOf(const HostPoolOptions& options);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // All sizes or nothing: appends one extent per size and returns true, or changes nothing and
  // returns false. Sizes are whole pages.
  bool Take(std::span<const uint64_t> sizes, std::vector<Extent>* extents);
  // Takes exactly this range; false if it is taken or not in the pool. Appends the extent.
  bool TakeAt(uint64_t offset, uint64_t bytes, std::vector<Extent>* extents);
  void Release(std::span<const Extent> extents);

  // Takes the bytes in as few runs as possible (pool_runs.h).
  bool TakeRuns(const RunWants& wants, std::vector<Extent>* runs);
  // True if TakeRuns would succeed if `released` were free as well. Nothing changes.
  bool FindsRuns(const RunWants& wants, std::span<const Extent> released);
  // Appends the extent, merged with the last one if it is adjacent in the same memfd.
  void Join(const Extent& extent, std::vector<Extent>* runs) const;

  // While withheld, nothing is free; places of kept jobs may still be taken.
  void Withhold(bool all) { withheld_ = all; }

  // Bytes for jobs: all, free, and in the largest free range.
  uint64_t total_bytes() const { return allocator_->total_bytes(); }
  uint64_t free_bytes() const { return allocator_->free_bytes(); }
  uint64_t largest_free_bytes() const { return allocator_->largest_free_bytes(); }
  // Determined when the pool was made or adopted; an adopted pool had no page mapped then.
  const PoolFacts& facts() const { return facts_; }
  // The server's own kept memory (own_bytes), zero at first.
  std::span<std::byte> own_records() const { return {own_data_, own_bytes_}; }
  // The bytes of a place that may or may not be an extent; empty unless it lies inside one piece,
  // behind the own records.
  std::span<const std::byte> Look(uint64_t offset, uint64_t bytes) const;
  PoolGeometry geometry() const { return {allocator_->total_bytes(), own_bytes_, piece_bytes_}; }
  std::vector<PoolPiece> pieces() const;
  // Each piece's mapping, as a GPU registers it. No extent lies in two of them.
  std::vector<std::span<std::byte>> mapped() const;
  // Pool offset of a byte inside an extent or the own records; stable across a restart that maps
  // the same memfds.
  uint64_t OffsetOf(const void* address) const;

 private:
  struct Piece {
    UniqueFd fd;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    uint64_t begin = 0;  // pool offset of data
  };
  HostPool() = default;
  Status MapPieces(const HostPoolOptions& options);
  Status MapPiece(Piece piece, bool huge_pages);
  void BindPieces(const HostPoolOptions& options);
  Extent ExtentAt(uint64_t offset, uint64_t bytes) const;
  void Settle(uint64_t own_bytes);
  Status Touch(const HostPoolOptions& options);

  std::vector<Piece> pieces_;
  std::unique_ptr<ExtentAllocator> allocator_;  // covers what lies behind the own records
  std::byte* own_data_ = nullptr;
  uint64_t own_bytes_ = 0;
  uint64_t piece_bytes_ = 0;
  PoolFacts facts_;
  bool withheld_ = false;
};

}  // namespace tidepool::memserver

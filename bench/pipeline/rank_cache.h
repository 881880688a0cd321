// RankCache: one rank of an emulated machine. The trainer's rCache emulates its GPU's memory and
// fetches and evicts over paced links; waits by the clock emulate its computing.
//
// One thread. Layers are computed in the order of the calls; each needs its chunks. A computation
// begins when the previous one has ended and its inputs have arrived, like a kernel in a GPU's
// queue, so a thread that wakes late does not lengthen the step. Every use of a chunk checks its
// content. Errors end the program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bench/pipeline/linked_chunks.h"
#include "trainer/cache/parameter_cache.h"

namespace tidepool::bench {

// A span of a GPU's computing.
struct Computed {
  int64_t start_ns = 0, end_ns = 0;
};

class RankCache {
 public:
  // The rank's chunks, memory and clock.
  struct Setup {
    const trainer::ChunkLayout* layout = nullptr;
    const std::vector<std::vector<ChunkId>>* chunks_of = nullptr;  // by layer
    Rank rank = 0;                                                 // in the layout
    LinkedChunks::Setup chunks;
    uint64_t rooms = 0;           // of one chunk's sum each
    uint64_t prefetch_depth = 0;  // chunks
    Clock* clock = nullptr;
  };
  // Everything that the setup points to must outlive the object. `chunks.rcache_bytes` includes the
  // rooms.
  explicit RankCache(const Setup& setup);

  // Begins a step. The first one records the order of the layers; later ones prefetch by it.
  void BeginStep(Version version);
  // Acquires the layer's chunks, computes for `duration_ns` and releases them.
  void Compute(uint32_t layer, int64_t duration_ns);
  // Takes a room for the sum of each of the layer's chunks. Waits for a submission if none is free.
  void OpenSums(uint32_t layer);
  // Submits the layer's sums to host memory.
  void HandIn(uint32_t layer);
  // Ends the step: waits until host memory has all sums.
  void EndStep();
  // Calls `wait`. If it takes longer than kLookNs, the next computation begins no earlier than its
  // end.
  template <typename Wait>
  void StandFor(const Wait& wait) {
    const int64_t before = setup_.clock->NowNs();
    wait();
    const int64_t now = setup_.clock->NowNs();
    if (now - before > kLookNs) until_ns_ = std::max(until_ns_, now);
  }

  // The spans of computing in the current or last step.
  const std::vector<Computed>& computed() const { return computed_; }
  uint64_t bytes_fetched() const { return cache_->counters().bytes_h2d; }  // in all steps

 private:
  // More than the time of a call that does not block.
  static constexpr int64_t kLookNs = 50'000;
  void CheckContent(uint32_t layer);

  const Setup setup_;
  LinkedChunks service_;
  std::unique_ptr<trainer::ParameterCache> cache_;
  std::vector<const std::byte*> places_;  // by chunk
  std::vector<trainer::Move> moves_;
  std::byte* rooms_ = nullptr;
  uint64_t room_bytes_ = 0;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> room_of_;                           // by chunk
  std::deque<std::pair<trainer::OpId, uint32_t>> leaving_;  // submissions, and their rooms
  int64_t until_ns_ = 0;                                    // end of the last computation
  std::vector<Computed> computed_;
};

}  // namespace tidepool::bench

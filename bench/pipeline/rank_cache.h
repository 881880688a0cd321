// RankCache: one rank of an emulated machine: its GPU's memory as the trainer's rCache, which
// fetches and evicts as a run does, over paced links; and its computing, as waits by the clock.
//
// One thread. Layers are computed in the order of the calls; each needs its chunks. A computation
// begins when the one before has ended, or when what it waits for has come: a GPU's kernels stand
// in a queue, so that a thread which wakes late from a wait makes no step longer. Each chunk's
// content is looked at where it is used.
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

// When a GPU computed.
struct Computed {
  int64_t start_ns = 0, end_ns = 0;
};

class RankCache {
 public:
  // What a rank is.
  struct Setup {
    const trainer::ChunkLayout* layout = nullptr;
    const std::vector<std::vector<ChunkId>>* chunks_of = nullptr;  // by layer
    Rank rank = 0;                                                 // in the layout
    LinkedChunks::Setup chunks;
    uint64_t rooms = 0;           // for sums of chunks
    uint64_t prefetch_depth = 0;  // chunks
    Clock* clock = nullptr;
  };
  // All that the setup names outlives it; `chunks.rcache_bytes` has the rooms.
  explicit RankCache(const Setup& setup);

  // The first step records the order of the layers, the others know it.
  void BeginStep(Version version);
  // Computes a layer.
  void Compute(uint32_t layer, int64_t duration_ns);
  // Gradients of the layer are added up from here on: takes room for them. May wait.
  void OpenSums(uint32_t layer);
  // They go to host memory.
  void HandIn(uint32_t layer);
  // Waits until all have gone.
  void EndStep();
  // What is called now is waited for; the next computation begins behind it.
  template <typename Wait>
  void StandFor(const Wait& wait) {
    const int64_t before = setup_.clock->NowNs();
    wait();
    const int64_t now = setup_.clock->NowNs();
    if (now - before > kLookNs) until_ns_ = std::max(until_ns_, now);
  }

  // When it computed in the present or last step.
  const std::vector<Computed>& computed() const { return computed_; }
  uint64_t bytes_fetched() const { return cache_->counters().bytes_h2d; }  // ever

 private:
  // Longer than a look at something that is there takes.
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
  std::deque<std::pair<trainer::OpId, uint32_t>> leaving_;  // and their rooms
  int64_t until_ns_ = 0;                                    // when the last computation ends
  std::vector<Computed> computed_;
};

}  // namespace tidepool::bench

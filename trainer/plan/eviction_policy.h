// EvictionPolicy: chooses the chunk to evict from its rCache block; moves nothing (a virtual seam:
// random, least recently used, Belady; `name` is for reports).
//
// One thread per object. A policy's answers depend on its construction and the calls made to it,
// never on time: ranks that make the same calls get the same victims. Every implementation passes
// tests/trainer/plan/eviction_policy_test.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/random.h"
#include "trainer/plan/access_schedule.h"

namespace tidepool::trainer {

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual const char* name() const = 0;
  // The chunk is used at `position` (positions never decrease within a pass).
  virtual void Used(ChunkId chunk, uint64_t position) = 0;
  // Chooses the one of `candidates` (ascending, not empty) that is evicted at `position`.
  virtual ChunkId Victim(std::span<const ChunkId> candidates, uint64_t position) = 0;
};

// Uniform among the candidates, from a seed shared by all ranks: for the first, recording pass
// (Elixir v1, section VI-A).
class RandomEviction final : public EvictionPolicy {
 public:
  explicit RandomEviction(uint64_t seed) : random_(seed) {}
  const char* name() const override { return "random"; }
  void Used(ChunkId, uint64_t) override {}
  ChunkId Victim(std::span<const ChunkId> candidates, uint64_t position) override;

 private:
  SplitMix64 random_;
};

// Least recently used, ties by chunk id: for passes that deviate from the recorded order.
class LruEviction final : public EvictionPolicy {
 public:
  explicit LruEviction(uint32_t chunk_count) : last_use_(chunk_count, 0) {}
  const char* name() const override { return "lru"; }
  void Used(ChunkId chunk, uint64_t position) override;
  ChunkId Victim(std::span<const ChunkId> candidates, uint64_t position) override;

 private:
  std::vector<uint64_t> last_use_;  // by ChunkId: the use count at its last use
  uint64_t uses_ = 0;
};

// Farthest next use, ties by chunk id: the optimum for a known order (Belady 1966; Elixir v1,
// section VI-A). Behind the last use of a pass comes the first one of the next pass (PatrickStar,
// section 8): contents that outlive a pass, as those of frozen chunks, are then there again.
class BeladyEviction final : public EvictionPolicy {
 public:
  // `next` must outlive the policy.
  explicit BeladyEviction(const NextUses* next) : next_(next) {}
  const char* name() const override { return "belady"; }
  void Used(ChunkId, uint64_t) override {}
  ChunkId Victim(std::span<const ChunkId> candidates, uint64_t position) override;

 private:
  using Use = std::pair<uint64_t, uint64_t>;  // passes from now, and the moment
  Use NextUse(ChunkId chunk, uint64_t position) const;

  const NextUses* next_;
};

}  // namespace tidepool::trainer

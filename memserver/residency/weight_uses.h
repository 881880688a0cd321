// WeightUses: the order in which each rank of a job fetches the chunks whose weights are on NVMe
// alone, as far as a server can know it: the order of the step before. Trainers follow one plan
// from step to step, so from the second planned step on this is enough for Belady's rule.
//
// One thread (the serve loop). A table of fixed size; only a hint: a wrong order costs time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"

namespace tidepool::memserver {

class WeightUses {
 public:
  static constexpr uint64_t kNever = ~uint64_t{0};
  // Most fetches remembered of one rank's step; later ones are ignored.
  static constexpr uint32_t kUsesMax = 1u << 14;

  WeightUses() = default;
  WeightUses(uint32_t ranks, uint32_t uses_max);

  // Notes that `rank` asks for the chunk's weights of `version`.
  void Note(Rank rank, ChunkId chunk, Version version);
  // Fetches before the chunk's next use, by the rank that needs it first; kNever if no rank used it
  // in its last step.
  uint64_t UntilNext(ChunkId chunk) const;
  // The `ahead`-th coming fetch of `rank`, from 0; none behind the end of its step's second round.
  std::optional<ChunkId> Next(Rank rank, uint32_t ahead) const;
  uint32_t ranks() const { return static_cast<uint32_t>(ranks_.size()); }
  // Grows with each Note.
  uint64_t notes() const { return notes_; }

 private:
  struct OfRank {
    std::vector<ChunkId> last, open;  // of the step before, and of the open one
    Version version = 0;              // of the open one
    size_t place = 0;                 // index in `last`, behind the newest fetch
  };
  std::vector<OfRank> ranks_;
  uint32_t uses_max_ = 0;
  uint64_t notes_ = 0;
};

}  // namespace tidepool::memserver

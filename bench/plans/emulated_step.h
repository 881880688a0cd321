// EmulatedPoint: one model on one emulated device with a limit for the rCache: steps under the
// presets, under what `--plan auto` chooses, and under two plans for comparison.
//
// One thread; each run blocks until its last step has ended, and an error ends the program.
// Computing takes a multiple of the time that fetching all weights once takes: a third in forward,
// the rest in backward.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/pipeline/paced_machine.h"
#include "trainer/plan/presets.h"

namespace tidepool::bench {

// Layers of equal size, each with some chunks, which an operator uses together.
struct EmulatedModel {
  const char* name;
  uint32_t layers, chunks_of_layer;
};
inline constexpr std::array<EmulatedModel, 2> kEmulatedModels{
    {{"16 layers of 2 chunks", 16, 2}, {"8 layers of 4 chunks", 8, 4}}};

// Measurements of a run, and its plan.
struct EmulatedResult {
  double step_ns = 0;       // median
  uint64_t bytes_up = 0;    // of the last step
  uint64_t planned_up = 0;  // as the plan has them
};

class EmulatedPoint {
 public:
  // `room`: how much of the way from zero3's blocks (0) to a block per chunk (1) the limit allows.
  EmulatedPoint(const EmulatedModel& model, double computing, double room);

  // Blocks that the limit allows, and chunks of the model.
  uint64_t limit_blocks() const { return limit_blocks_; }
  uint64_t chunks() const { return layout_.chunks.size(); }

  // nullopt if the preset does not fit.
  std::optional<EmulatedResult> Preset(const std::string& name, uint32_t steps, Clock* clock) const;
  EmulatedResult Auto(uint32_t steps, Clock* clock) const;
  // The blocks of Auto, each fetch when it is needed.
  EmulatedResult WithoutPrefetch(uint32_t steps, Clock* clock) const;
  // As many first chunks as fit are always resident, and all others go through zero3's blocks: the
  // same memory, without eviction by the next use.
  EmulatedResult Static(uint32_t steps, Clock* clock) const;

 private:
  struct Way {
    trainer::ChunkLayout layout;
    uint64_t blocks = 0, prefetch_depth = 2;
  };
  EmulatedResult Run(const Way& way, uint32_t steps, Clock* clock) const;
  uint64_t AutoBlocks() const;

  PacedMachine machine_;
  trainer::ChunkLayout layout_;
  trainer::AccessSchedule order_;
  std::vector<trainer::PlanWay> presets_;
  uint64_t limit_blocks_ = 0;
};

}  // namespace tidepool::bench

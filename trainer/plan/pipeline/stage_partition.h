// Partition: which layers form which stage of Mobius' pipeline (Feng et al., ASPLOS 2023, section
// 3.2), so that a step takes the least time by trainer/plan/pipeline/stage_times.h.
//
// Any thread; pure: the same task gives the same partition on every machine.
// The paper solves a mixed-integer program with a commercial solver. Layers form a chain, so a
// partition is a set of cuts, and FindPartition is an exact branch and bound over the cuts, layer
// by layer: it drops labels that cannot beat the best partition so far, and labels that another one
// dominates (trainer/plan/pipeline/stage_label.h). It first keeps a few labels per layer, to get a
// good partition to compare with; then all of them. If that would try more than `stages_tried_max`
// stages, it returns the best partition so far with a lower bound for all partitions.
// trainer/plan/pipeline/partition_lp.h writes the paper's program for any solver.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

struct Partition {
  std::vector<uint32_t> ends;  // by stage: one past its last layer
  int64_t step_ns = 0;
  int64_t bound_ns = 0;       // no partition takes less
  uint64_t stages_tried = 0;  // number of stages appended to labels

  // No partition is better.
  bool proven() const { return bound_ns >= step_ns; }
};

// Limits of a search.
struct PartitionLimits {
  uint32_t stages = 0;  // the exact number; 0: any number
  uint64_t stages_tried_max = 150'000;
};

// Errors: kDeviceMemoryShort (a layer does not fit, or that number of stages does not), kUsageError
// (more stages than layers).
Result<Partition> FindPartition(const StageTable& table, const PartitionLimits& limits);

// The paper's baseline (section 4.3): as many layers per stage as fit, from the first layer on.
// Errors: kDeviceMemoryShort.
Result<Partition> MaximumStages(const StageTable& table);
// One layer per stage (the paper's "minimum-stage partition algorithm"). Errors: as MaximumStages.
Result<Partition> MinimumStages(const StageTable& table);

}  // namespace tidepool::trainer

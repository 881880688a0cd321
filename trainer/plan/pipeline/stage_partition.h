// Partition: which layers form which stage of Mobius' pipeline (Feng et al., ASPLOS 2023, section
// 3.2), so that a step takes the least time by trainer/plan/pipeline/stage_times.h.
//
// Any thread; pure: the same task gives the same partition on every machine.
// The paper solves a mixed-integer program with a commercial solver. Layers form a chain, so a
// partition is a set of cuts, and FindPartition is an exact branch and bound over the cuts, layer
// by layer: labels that cannot lead to less than the best partition so far, and labels that another
// one is never worse than, are dropped (trainer/plan/pipeline/stage_label.h). First it keeps a few
// labels a layer, for a good partition to compare with; then all of them. Where that would be more
// than `stages_tried_max` stages, the best partition so far is returned with what no partition can
// be below. trainer/plan/pipeline/partition_lp.h writes the paper's program for any solver.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

struct Partition {
  std::vector<uint32_t> ends;  // of each stage: the layer behind its last
  int64_t step_ns = 0;
  int64_t bound_ns = 0;       // no partition takes less
  uint64_t stages_tried = 0;  // added to some first stages

  // Nothing is better.
  bool proven() const { return bound_ns >= step_ns; }
};

// How far a search goes.
struct PartitionLimits {
  uint32_t stages = 0;  // exactly so many; 0: any number
  uint64_t stages_tried_max = 150'000;
};

// Errors: kDeviceMemoryShort (a layer does not fit, or so few stages do not), kUsageError (more
// stages than layers).
Result<Partition> FindPartition(const StageTable& table, const PartitionLimits& limits);

// What the paper compares with (section 4.3): as many layers in each stage as fit, in this order.
// Errors: kDeviceMemoryShort.
Result<Partition> MaximumStages(const StageTable& table);
// One layer in each stage (the paper's "minimum-stage partition algorithm"). Errors: likewise.
Result<Partition> MinimumStages(const StageTable& table);

}  // namespace tidepool::trainer

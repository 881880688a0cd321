// PacedMachine: a machine and a model of Mobius' evaluation, scaled so that this one can emulate
// them: bytes and times are divided, so that every ratio between copies and computing stays.
//
// Any thread; values and pure functions. A layer is some chunks of one size, a quarter of a block
// each, so its bytes are rounded; what is planned, predicted and run has the rounded ones.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/advice/pipeline_advice.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/pipeline/pipeline_schedule.h"
#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::bench {

// By how much bytes and times are divided.
struct Scale {
  uint64_t bytes = 1, times = 1;
};

struct PacedMachine {
  trainer::PipelineTask task;     // scaled, with the rate of a GPU whose copies nobody disturbs
  trainer::GpuTopology topology;  // with scaled rates
  uint64_t chunk_bytes = 0;       // of 16-bit weights

  // How many chunks a layer is.
  uint32_t ChunksOf(uint32_t layer) const {
    return static_cast<uint32_t>(task.layers[layer].weight_bytes / chunk_bytes);
  }
  // By GPU.
  std::vector<uint32_t> complexes() const;
  // By root complex.
  std::vector<double> rates() const;
};

// The machine and the model of a question, scaled.
PacedMachine MachineOf(const trainer::PipelineQuestion& question, const Scale& scale);

// Stages, and the steps that the planner's schedules foresee.
struct PacedPlan {
  std::vector<uint32_t> ends;
  std::vector<uint32_t> cross, sequential;  // orders of GPUs
  int64_t cross_ns = 0, sequential_ns = 0;
};

// The stages with the shortest schedule, of those that `trainer estimate --pipeline auto` tries.
PacedPlan PlanOf(const PacedMachine& machine);

// A layout of the layers' chunks: `group_of` says each layer's data group, of which each has one
// rank. Layer i has the chunks ChunkIdsOf(layout, machine)[i].
trainer::ChunkLayout LayoutOf(const PacedMachine& machine, const std::vector<uint32_t>& group_of,
                              const std::vector<std::vector<Rank>>& groups, uint32_t world);
std::vector<std::vector<ChunkId>> ChunkIdsOf(const trainer::ChunkLayout& layout,
                                             const PacedMachine& machine);

}  // namespace tidepool::bench

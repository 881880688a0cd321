// PacedMachine: a machine and a model of Mobius' evaluation, scaled so that the host can emulate
// them. Bytes and times are divided, so the ratios between copies and computing stay the same.
//
// Any thread; values and pure functions. All chunks have the same size, a quarter of a middle
// layer, so the bytes of a layer are rounded to whole chunks. Plans, predictions and runs use the
// rounded bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/advice/pipeline_advice.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/pipeline/pipeline_schedule.h"
#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::bench {

// Divisors of bytes and times.
struct Scale {
  uint64_t bytes = 1, times = 1;
};

struct PacedMachine {
  trainer::PipelineTask task;     // scaled; bytes_per_ns: the rate of a GPU that copies alone
  trainer::GpuTopology topology;  // with scaled rates
  uint64_t chunk_bytes = 0;       // of 16-bit weights

  // Number of chunks of a layer.
  uint32_t ChunksOf(uint32_t layer) const {
    return static_cast<uint32_t>(task.layers[layer].weight_bytes / chunk_bytes);
  }
  // The root complex of each GPU.
  std::vector<uint32_t> complexes() const;
  // The scaled rate of each root complex, in bytes per nanosecond.
  std::vector<double> rates() const;
};

// Scales the machine and the model of a question.
PacedMachine MachineOf(const trainer::PipelineQuestion& question, const Scale& scale);

// Stages, their mappings to GPUs, and the step times that the planner predicts.
struct PacedPlan {
  std::vector<uint32_t> ends;               // by stage: one past its last layer
  std::vector<uint32_t> cross, sequential;  // orders of GPUs
  int64_t cross_ns = 0, sequential_ns = 0;
};

// The partition with the shortest schedule among those that `trainer estimate --pipeline auto`
// tries. Ends the program if a layer does not fit on a GPU.
PacedPlan PlanOf(const PacedMachine& machine);

// The layout of the chunks of all layers. `group_of`: the data group of each layer; `groups`: the
// ranks of each data group, one each; `world`: the number of ranks.
trainer::ChunkLayout LayoutOf(const PacedMachine& machine, const std::vector<uint32_t>& group_of,
                              const std::vector<std::vector<Rank>>& groups, uint32_t world);
// The chunks of each layer in such a layout, ascending.
std::vector<std::vector<ChunkId>> ChunkIdsOf(const trainer::ChunkLayout& layout,
                                             const PacedMachine& machine);

}  // namespace tidepool::bench

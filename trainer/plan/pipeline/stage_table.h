// StageTable: the cost of each run of layers as one pipeline stage.
//
// Any thread; values and pure functions. The planner of Mobius' pipeline (Feng et al., ASPLOS 2023,
// section 3.2) chooses among these stages.
// Symbols, as in the paper's table 2: L layers, N GPUs, M micro-batches, G bytes of memory per GPU,
// B bytes per second of one GPU's copies; stage j has forward and backward time T_j for one
// micro-batch, needs S_j bytes of a GPU, leaves R_j = G - S_j of it for prefetching, and sends a_j
// bytes. Units: times in nanoseconds, sizes in bytes; sizes named _ns are their copy time, rounded
// up per layer, so that they add up without further rounding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tidepool::trainer {

// One layer, per micro-batch.
struct PipelineLayer {
  int64_t forward_ns = 0, backward_ns = 0;  // backward includes recomputation
  uint64_t weight_bytes = 0;                // as operators use them
  uint64_t gradient_bytes = 0;              // of the sum over micro-batches, until the stage ends
  uint64_t kept_bytes = 0;                  // what the recomputed forward keeps for its backward
  uint64_t output_bytes =
      0;  // the tensor that the next layer reads; its gradient has the same size
  // Peak of operators in addition to the above.
  uint64_t forward_work_bytes = 0, backward_work_bytes = 0;
  friend bool operator==(const PipelineLayer&, const PipelineLayer&) = default;
};

// Input of the planner.
struct PipelineTask {
  std::vector<PipelineLayer> layers;  // L, at least one
  uint32_t gpus = 1;                  // N
  uint32_t micro_batches = 1;         // M
  uint64_t gpu_bytes = 0;             // G
  double bytes_per_ns = 1;            // B, which is also 10^9 bytes a second
};

// Time of a copy, rounded up.
int64_t CopyNs(uint64_t bytes, double bytes_per_ns);

// Layers [first, behind) as one stage.
struct Stage {
  uint32_t first = 0, behind = 0;
  int64_t forward_ns = 0, backward_ns = 0;              // T_j
  uint64_t weight_bytes = 0, gradient_bytes = 0;        // W_j
  uint64_t input_bytes = 0, output_bytes = 0;           // a_(j-1), a_j: 0 at the ends of the model
  uint64_t forward_bytes = 0, backward_bytes = 0;       // S_j: two inputs and two outputs at a time
  int64_t weight_ns = 0, input_ns = 0;                  // W_j / B, a_(j-1) / B
  int64_t forward_spare_ns = 0, backward_spare_ns = 0;  // R_j / B, rounded down
  bool fits = false;                                    // constraint (4): S_j <= G
};

// All runs of layers.
class StageTable {
 public:
  // Requires layers, GPUs, micro-batches and a rate above 0.
  explicit StageTable(const PipelineTask& task);

  const PipelineTask& task() const { return task_; }
  uint32_t layers() const { return static_cast<uint32_t>(task_.layers.size()); }
  // Requires first < behind <= layers().
  const Stage& At(uint32_t first, uint32_t behind) const;
  // The most layers in a stage that fits; 0 if some layer does not fit alone.
  uint32_t layers_max() const { return layers_max_; }

  // The stages whose layers end before `ends` (ascending; the last is layers()).
  std::vector<Stage> StagesOf(std::span<const uint32_t> ends) const;

 private:
  const PipelineTask task_;
  std::vector<Stage> stages_;  // [first][behind - 1]
  uint32_t layers_max_ = 0;
};

// The number of distinct layers; equal ones share one profile and one row in the output (layer
// similarity, section 3.2, "Profiling").
uint32_t DifferentLayers(std::span<const PipelineLayer> layers);

}  // namespace tidepool::trainer

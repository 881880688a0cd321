// StageLabel: the first stages of a partition, reduced to what later stages depend on; LabelRules:
// how to append a stage, when one label dominates another, and a lower bound of the step's time.
//
// Any thread; pure. Used by trainer/plan/pipeline/stage_partition.h only. Symbols and units:
// trainer/plan/pipeline/stage_table.h; constraints: trainer/plan/pipeline/stage_times.h.
// A step is a longest path: through forward, over (11), through backward. Forward times (heads)
// depend on earlier stages. The rest of the path after a start of backward (a tail) runs to stage
// 1, so it depends on earlier stages, too. Both are therefore known for the first stages of any
// partition, and a step takes head of (S, M) plus tail of (S, 1).
// Both are maxima of sums: if no head of a label is more than x later than another label's, no tail
// more than y longer, and x + y <= 0, then every continuation of the label is at least as good.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

struct StageLabel {
  uint32_t layer = 0;   // the next layer
  uint32_t stages = 0;  // so far
  int32_t parent = -1;  // the label before the last stage was appended
  int64_t bound_ns = 0;
  // M ends of the last stage; then, for each of the last N stages from the oldest: start, end, and
  // end minus its spare. An idle GPU has a stage that took no time.
  std::vector<int64_t> heads;
  // M tails of the last stage; then for each of the last N stages: tail of its first micro-batch,
  // and the same with its upload.
  std::vector<int64_t> tails;
};

class LabelRules {
 public:
  // `table` outlives the object. `stages`: of the whole partition; 0: any number.
  LabelRules(const StageTable& table, uint32_t stages);

  // The label without stages.
  StageLabel Root() const;
  // Requires a stage that begins at the label's layer.
  StageLabel With(const StageLabel& label, const Stage& stage) const;
  // A lower bound over all partitions with this beginning; exact for a complete one.
  int64_t BoundOf(const StageLabel& label) const;
  // Requires labels at the same layer.
  bool IsNeverWorse(const StageLabel& label, const StageLabel& than) const;

 private:
  // Sums and extremes over the layers from a given one on.
  struct Rest {
    int64_t forward = 0, backward = 0, weights = 0;
    int64_t longest_forward = 0, longest_backward = 0;
    int64_t least_copy = 0;  // of the boundary tensors between them
  };
  // Least head and tail of any continuation of a label, and the parts of them used in finer bounds.
  struct Ends {
    int64_t head = 0, tail = 0;
    int64_t first_head = 0, first_tail = 0;  // when the next stage can begin; the path after it
    int64_t starts = 0, tails = 0;           // of the last stages of all GPUs, summed
  };

  Ends EndsOf(const StageLabel& label) const;
  int64_t BoundByCount(const StageLabel& label, const Ends& ends) const;
  int64_t BoundByLast(const StageLabel& label, const Ends& ends) const;
  // Time between the last stages of all GPUs, summed, if all GPUs have one.
  int64_t Stagger(const StageLabel& label, int64_t least) const;
  int64_t UploadsOf(const StageLabel& label) const;

  const StageTable& table_;
  const uint32_t stages_;
  const int64_t gpus_, micro_batches_;
  int64_t gpu_ns_ = 0;  // G / B
  std::vector<Rest> rest_;
  int64_t least_forward_ = 0, least_backward_ = 0;  // minimum over the layers
};

}  // namespace tidepool::trainer

// StageLabel: the first stages of a partition, as far as later stages can notice them; LabelRules:
// how a stage is added, which of two labels is never worse, and how long a step takes at least.
//
// Any thread; pure. Used by trainer/plan/pipeline/stage_partition.h alone. Symbols and units:
// trainer/plan/pipeline/stage_table.h; constraints: trainer/plan/pipeline/stage_times.h.
// A step is a longest path: through forward, over (11), through backward. Forward times (heads)
// depend on the stages before. The rest of the path behind a start of backward (a tail) runs to
// stage 1, so it depends on the stages before, too. So both are known for the first stages of any
// partition, and a step takes head of (S, M) plus tail of (S, 1).
// Both are maxima of sums, so when no head of a label is more than x later than another label's, no
// tail more than y longer, and x + y <= 0, then each way to go on is at least as good for it.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

struct StageLabel {
  uint32_t layer = 0;   // the next one
  uint32_t stages = 0;  // so far
  int32_t parent = -1;  // the label without the last stage
  int64_t bound_ns = 0;
  // M ends of the last stage; then for each of the last N stages, the oldest first: start, end, end
  // less what is spare beside it. A GPU without a stage has one that took no time.
  std::vector<int64_t> heads;
  // M tails of the last stage; then for each of the last N stages: tail of its first micro-batch,
  // and that with its upload.
  std::vector<int64_t> tails;
};

class LabelRules {
 public:
  // `table` outlives it. `stages`: of the whole partition; 0: any number.
  LabelRules(const StageTable& table, uint32_t stages);

  // No stages yet.
  StageLabel Root() const;
  // Requires a stage that begins at the label's layer.
  StageLabel With(const StageLabel& label, const Stage& stage) const;
  // What every partition that begins like this takes at least; exact for a whole one.
  int64_t BoundOf(const StageLabel& label) const;
  // Requires labels at the same layer.
  bool IsNeverWorse(const StageLabel& label, const StageLabel& than) const;

 private:
  // Sums and extremes over the layers from one on.
  struct Rest {
    int64_t forward = 0, backward = 0, weights = 0;
    int64_t longest_forward = 0, longest_backward = 0;
    int64_t least_copy = 0;  // of the boundary tensors between them
  };
  // Least head and tail of what goes on from a label, and the parts of them that depend on more.
  struct Ends {
    int64_t head = 0, tail = 0;
    int64_t first_head = 0, first_tail = 0;  // when the next stage can begin; what then follows it
    int64_t starts = 0, tails = 0;           // of the last stages of all GPUs, summed
  };

  Ends EndsOf(const StageLabel& label) const;
  int64_t BoundByCount(const StageLabel& label, const Ends& ends) const;
  int64_t BoundByLast(const StageLabel& label, const Ends& ends) const;
  // Time between the last stages of all GPUs, summed, where all have one.
  int64_t Stagger(const StageLabel& label, int64_t least) const;
  int64_t UploadsOf(const StageLabel& label) const;

  const StageTable& table_;
  const uint32_t stages_;
  const int64_t gpus_, micro_batches_;
  int64_t gpu_ns_ = 0;  // G / B
  std::vector<Rest> rest_;
  int64_t least_forward_ = 0, least_backward_ = 0;  // of a layer
};

}  // namespace tidepool::trainer

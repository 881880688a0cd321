#include "trainer/plan/pipeline/stage_times.h"

#include <algorithm>

namespace tidepool::trainer {
namespace {

// Start times of one stage for all micro-batches: (8) and (10), and not before its weights arrive.
std::vector<int64_t> StartsOf(int64_t weights_there, const std::vector<int64_t>& inputs_there,
                              int64_t duration) {
  std::vector<int64_t> starts;
  int64_t free = weights_there;
  for (const int64_t there : inputs_there) {
    starts.push_back(std::max(free, there));
    free = starts.back() + duration;
  }
  return starts;
}

// (9) with the best P_j: `before` computed on this GPU, and left `spare` free.
int64_t WeightsThere(const std::vector<int64_t>& before, int64_t duration, int64_t spare,
                     int64_t upload) {
  const int64_t end = before.back() + duration;
  return std::max({end, end + upload - spare, before.front() + upload});
}

std::vector<int64_t> Later(const std::vector<int64_t>& times, int64_t by) {
  std::vector<int64_t> later = times;
  for (int64_t& time : later) time += by;
  return later;
}

}  // namespace

StageTimes TimesOf(const PipelineTask& task, std::span<const Stage> stages) {
  const size_t count = stages.size(), gpus = task.gpus;
  StageTimes times;
  for (size_t j = 0; j < count; ++j) {
    const int64_t weights =
        j < gpus ? stages[j].weight_ns
                 : WeightsThere(times.forward[j - gpus], stages[j - gpus].forward_ns,
                                stages[j - gpus].forward_spare_ns, stages[j].weight_ns);

    const std::vector<int64_t> inputs =
        j == 0 ? std::vector<int64_t>(task.micro_batches, 0)
               : Later(times.forward[j - 1], stages[j - 1].forward_ns + stages[j].input_ns);
    times.forward.push_back(StartsOf(weights, inputs, stages[j].forward_ns));
  }

  times.forward_end_ns = times.forward.back().back() + stages.back().forward_ns;
  times.backward.resize(count);
  for (size_t j = count; j-- > 0;) {
    int64_t weights = times.forward_end_ns;  // (11); no bound for the other stages
    if (j + gpus < count) {
      const Stage& before = stages[j + gpus];
      weights = WeightsThere(times.backward[j + gpus], before.backward_ns, before.backward_spare_ns,
                             stages[j].weight_ns + stages[j].input_ns);
    }

    const std::vector<int64_t> inputs =
        j + 1 == count
            ? std::vector<int64_t>(task.micro_batches, times.forward_end_ns)
            : Later(times.backward[j + 1], stages[j + 1].backward_ns + stages[j + 1].input_ns);
    times.backward[j] = StartsOf(weights, inputs, stages[j].backward_ns);
  }

  times.step_ns = times.backward.front().back() + stages.front().backward_ns;
  return times;
}

}  // namespace tidepool::trainer

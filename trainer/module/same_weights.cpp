#include "trainer/module/same_weights.h"

#include <algorithm>

namespace tidepool::trainer {

Status CheckSameWeights(Collective* world, const std::vector<InitialWeights>& weights) {
  std::vector<uint32_t> of_rank_0;
  for (const InitialWeights& one : weights) of_rank_0.push_back(one.crc);
  TP_RETURN_IF_ERROR(world->Broadcast(of_rank_0.data(), of_rank_0.size() * sizeof(uint32_t)));

  // The number of ranks that differ from rank 0, by parameter.
  std::vector<double> differ(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) differ[i] = weights[i].crc == of_rank_0[i] ? 0 : 1;
  TP_RETURN_IF_ERROR(world->SumDoubles(differ.data(), differ.size()));

  const auto first =
      std::find_if(differ.begin(), differ.end(), [](double ranks) { return ranks > 0; });
  if (first == differ.end()) return {};

  const auto parameters =
      std::count_if(first, differ.end(), [](double ranks) { return ranks > 0; });
  const std::string& name = weights[static_cast<size_t>(first - differ.begin())].name;

  return Status(ErrorId::kUsageError,
                "the ranks begin with different weights: " + std::to_string(parameters) + " of " +
                    std::to_string(weights.size()) + " parameters differ, the first is " + name)
      .Where(name)
      .Why(
          "each rank hands in its share of the initial weights, which would be put together from "
          "several models")
      .Fix(
          "make the model with the same seed on each rank (torch.manual_seed(1) before it is "
          "made), or load the same file");
}

}  // namespace tidepool::trainer

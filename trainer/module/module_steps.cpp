// How ModuleJob ends a step, with hyperparameters for each parameter group.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "trainer/module/module_job.h"

namespace tidepool::trainer {

Result<client::Outcome> ModuleJob::Step(double learning_rate) {
  return Seal(static_cast<float>(learning_rate), {});
}

// Sends only numbers that differ from the job's: otherwise the request is as before groups had
// their own numbers.
Result<client::Outcome> ModuleJob::Step(std::span<const GroupNumbers> groups) {
  if (groups.size() != settings_.groups.size()) {
    return Status(ErrorId::kUsageError,
                  "step was given numbers of " + std::to_string(groups.size()) +
                      " parameter groups; the job has " + std::to_string(settings_.groups.size()));
  }

  TP_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(settings_.run.model.dtype));
  for (size_t group = 0; group < groups.size(); ++group) {
    const char* const why = WhyBad(settings_.optimizer, dtype, groups[group]);
    if (why == nullptr) continue;
    return Status(ErrorId::kUsageError, why)
        .Where("parameter group " + std::to_string(group))
        .Fix("correct the number, or the schedule that sets it");
  }

  // The rate to which the job's factors refer.
  const auto whole = std::find_if(settings_.groups.begin(), settings_.groups.end(),
                                  [](const auto& group) { return group.lr_scale == 1; });
  const auto base =
      static_cast<size_t>(whole == settings_.groups.end() ? 0 : whole - settings_.groups.begin());
  const float learning_rate = groups[base].learning_rate;
  std::vector<client::GroupStep> differ;
  for (uint32_t group = 0; group < groups.size(); ++group) {
    if (!IsAsBegun(group, learning_rate, groups[group])) differ.push_back({group, groups[group]});
  }
  return Seal(learning_rate, differ);
}

bool ModuleJob::IsAsBegun(uint32_t group, float learning_rate, const GroupNumbers& numbers) const {
  constexpr float kRounding = 1e-6F;
  const client::ParameterGroup& begun = settings_.groups[group];
  const float rate = learning_rate * begun.lr_scale;
  const float most = std::max(std::abs(rate), std::abs(numbers.learning_rate));
  return std::abs(rate - numbers.learning_rate) <= kRounding * most &&
         numbers == NumbersOf(settings_.optimizer, numbers.learning_rate, begun.weight_decay);
}

Result<client::Outcome> ModuleJob::Seal(float learning_rate,
                                        std::span<const client::GroupStep> groups) {
  if (steps_ == nullptr) return NotNow("step", "bind the job first");
  Result<client::Outcome> sealed = steps_->EndStep({.learning_rate = learning_rate,
                                                    .loss_scale = static_cast<float>(place_.world),
                                                    .groups = groups,
                                                    .facts = std::exchange(facts_, {})});
  if (!sealed.ok()) return Explained(sealed.status());
  return sealed;
}

}  // namespace tidepool::trainer

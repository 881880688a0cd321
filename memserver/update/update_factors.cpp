#include "memserver/update/update_factors.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/planted.h"
#include "optim/update_rule.h"

namespace tidepool::memserver {
namespace {

optim::StepFactors FactorsOf(const shm::JobSpec& spec, const StepRecord& record,
                             const StepView* said, std::pair<uint32_t, uint32_t> group_and_missed) {
  const auto [group, missed] = group_and_missed;
  const shm::ParameterGroup& own = spec.parameter_groups[group];
  const uint64_t number = std::max<uint64_t>(record.optimizer_step, missed + uint64_t{1}) - missed;
  optim::StepScalars step{record.learning_rate, number, record.gradient_scale};

  const GroupNumbers* numbers = said == nullptr ? nullptr : said->Of(group);
  if (numbers == nullptr)
    return optim::MakeFactors(spec.optimizer, step, {own.lr_scale, own.weight_decay});
  step.lr = numbers->learning_rate;
  return optim::MakeFactors(WithNumbers(spec.optimizer, *numbers), step,
                            {1, numbers->weight_decay});
}

}  // namespace

void UpdateFactors::Make(const shm::JobSpec& spec, const StepRecord& record,
                         const std::optional<StepView>& said) {
  factors_.clear();
  of_parameter_.clear();
  if (said && !said->words.empty()) return MakeByParameter(spec, record, *said);
  for (uint32_t group = 0; group < spec.parameter_groups.size(); ++group)
    factors_.push_back(FactorsOf(spec, record, said ? &*said : nullptr, {group, 0}));
}

// Makes one set of factors for each existing pair of group and number of missed steps.
void UpdateFactors::MakeByParameter(const shm::JobSpec& spec, const StepRecord& record,
                                    const StepView& said) {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;
  of_parameter_.reserve(spec.parameters.size());
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    if ((said.words[i] & kLeftAlone) != 0 && !TP_PLANTED("update.untouched_updated")) {
      of_parameter_.push_back(ChunkFactors::kNone);
      continue;
    }

    const uint32_t missed =
        TP_PLANTED("update.step_not_of_parameter") ? 0 : StepsMissed(said.words[i]);
    const auto [it, is_new] = known.try_emplace({spec.parameters[i].group, missed},
                                                static_cast<uint32_t>(factors_.size()));
    if (is_new) factors_.push_back(FactorsOf(spec, record, &said, it->first));
    of_parameter_.push_back(it->second);
  }
}

}  // namespace tidepool::memserver

#include "optim/update_rule.h"

#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "optim/rules.h"

namespace tidepool::optim {
namespace {

// Fills `factors` by the first rule of the list that serves the job; false if there is none.
template <typename... Rules>
bool Fill(RuleList<Rules...> /*list*/, const OptimizerSpec& spec, const StepScalars& step,
          const GroupScalars& group, StepFactors* factors) {
  uint32_t place = 0;
  const auto try_rule = [&]<typename Rule>(std::type_identity<Rule>) {
    if (!Rule::Serves(spec)) {
      ++place;
      return false;
    }

    const typename Rule::Factors own = Rule::Make(spec, step, group);
    factors->rule = place;
    std::memcpy(factors->numbers, &own, sizeof own);
    return true;
  };

  return (try_rule(std::type_identity<Rules>{}) || ...);
}

uint64_t BytesOfMoment(StateForm form) {
  return MomentBytes(form, 64) / 64;  // per element; the scales of 64 are fewer bytes
}

void Move(void** plane, uint64_t bytes) {
  if (*plane != nullptr) *plane = static_cast<std::byte*>(*plane) + bytes;
}

}  // namespace

StepFactors MakeFactors(const OptimizerSpec& spec, const StepScalars& step,
                        const GroupScalars& group) {
  TP_CHECK(step.optimizer_step >= 1, "optimizer steps are counted from 1");
  StepFactors factors;
  factors.gradient_scale = step.gradient_scale;
  TP_CHECK(Fill(AllRules(), spec, step, group, &factors), "a checked specification has a rule");
  return factors;
}

uint64_t RandomKey(uint64_t parameter_seed, uint64_t version) {
  return MixBits(parameter_seed + version);
}

UpdateSpan Slice(const UpdateSpan& span, uint64_t first, uint64_t count) {
  TP_CHECK(first <= span.count && count <= span.count - first, "slice lies outside its span");
  TP_CHECK(span.states != StateForm::kSplit8 || first % kScaleBlockElements == 0,
           "a slice of 8-bit states begins with a block");

  UpdateSpan slice = span;
  Move(&slice.master, MasterBytes(span.states, first));
  Move(&slice.momentum, first * BytesOfMoment(span.states));
  Move(&slice.variance, first * BytesOfMoment(span.states));
  if (span.momentum_scales != nullptr) slice.momentum_scales += first / kScaleBlockElements;
  if (span.variance_scales != nullptr) slice.variance_scales += first / kScaleBlockElements;

  slice.gradient =
      static_cast<const std::byte*>(span.gradient) + first * BytesOf(span.gradient_dtype);
  Move(&slice.param16, first * BytesOf(span.param16_dtype));

  slice.random.index += first;
  slice.count = count;
  return slice;
}

}  // namespace tidepool::optim

#include "base/formats/optimizer.h"

#include <array>
#include <cmath>

#include "base/units.h"

namespace tidepool {
namespace {

// Indexed by rule number. A new rule has its line here, and its file in optim/rules/.
struct RuleLine {
  const char* name;
  bool momentum, variance;  // the planes that it needs
};
constexpr std::array<RuleLine, 5> kRules{{
    {"adamw", true, true},
    {"adam", true, true},
    {"sgd", true, false},  // momentum only if the job has one
    {"adagrad", false, true},
    {"lion", true, false},
}};

struct FormLine {
  const char* name;
  uint64_t master_bytes, moment_bytes;  // bytes per element
};
constexpr std::array<FormLine, 4> kForms{
    {{"fp32", 4, 4}, {"split", 2, 4}, {"split-bf16", 2, 2}, {"split-8bit", 2, 1}}};

template <typename Line, size_t kCount>
constexpr std::array<const char*, kCount> NamesIn(const std::array<Line, kCount>& lines) {
  std::array<const char*, kCount> names{};
  for (size_t i = 0; i < kCount; ++i) names[i] = lines[i].name;
  return names;
}
constexpr auto kRuleNames = NamesIn(kRules);
constexpr auto kFormNames = NamesIn(kForms);

constexpr uint64_t kLineBytes = 64;

const FormLine& LineOf(StateForm form) {
  return kForms[static_cast<uint32_t>(form)];
}

bool InRange(double value, double least, double most) {
  return std::isfinite(value) && value >= least && value <= most;
}

}  // namespace

const char* WhyBad(const OptimizerSpec& spec, DType parameters) {
  constexpr double kBelowOne = 1 - 1e-12;
  constexpr double kHuge = 1e30;

  if (NameOf(spec.rule) == nullptr) return "unknown optimizer";
  if (NameOf(spec.states) == nullptr) return "unknown form of the optimizer states";

  if (!InRange(spec.beta1, 0, kBelowOne) || !InRange(spec.beta2, 0, kBelowOne))
    return "beta1 and beta2 must lie in [0, 1)";
  if (!InRange(spec.eps, 0, kHuge)) return "eps must be finite and not negative";
  if (!InRange(spec.momentum, 0, kBelowOne)) return "momentum must lie in [0, 1)";
  if (!InRange(spec.dampening, 0, 1)) return "dampening must lie in [0, 1]";
  if (!InRange(spec.lr_decay, 0, kHuge)) return "lr_decay must be finite and not negative";

  if (spec.nesterov > 1) return "nesterov is 0 or 1";
  if (spec.nesterov == 1 && (spec.momentum == 0 || spec.dampening != 0))
    return "nesterov needs a momentum and no dampening";

  if (IsSplit(spec.states) && parameters != DType::kBF16)
    return "only bf16 jobs can have a split master";
  return nullptr;
}

GroupNumbers NumbersOf(const OptimizerSpec& spec, float learning_rate, float weight_decay) {
  GroupNumbers numbers{.learning_rate = learning_rate, .weight_decay = weight_decay};
  switch (spec.rule) {
    case OptimizerRule::kAdamW:
    case OptimizerRule::kAdam: numbers.eps = static_cast<float>(spec.eps); [[fallthrough]];
    case OptimizerRule::kLion:
      numbers.beta1 = spec.beta1;
      numbers.beta2 = spec.beta2;
      break;

    case OptimizerRule::kSgd:
      numbers.beta1 = spec.momentum;
      numbers.beta2 = spec.dampening;
      break;
    case OptimizerRule::kAdagrad:
      numbers.beta1 = spec.lr_decay;
      numbers.eps = static_cast<float>(spec.eps);
      break;
  }
  return numbers;
}

OptimizerSpec WithNumbers(const OptimizerSpec& spec, const GroupNumbers& numbers) {
  OptimizerSpec own = spec;
  switch (spec.rule) {
    case OptimizerRule::kAdamW:
    case OptimizerRule::kAdam: own.eps = numbers.eps; [[fallthrough]];
    case OptimizerRule::kLion:
      own.beta1 = numbers.beta1;
      own.beta2 = numbers.beta2;
      break;

    case OptimizerRule::kSgd:
      own.momentum = numbers.beta1;
      own.dampening = numbers.beta2;
      break;
    case OptimizerRule::kAdagrad:
      own.lr_decay = numbers.beta1;
      own.eps = numbers.eps;
      break;
  }
  return own;
}

const char* WhyBad(const OptimizerSpec& spec, DType parameters, const GroupNumbers& numbers) {
  constexpr double kHuge = 1e30;
  if (!InRange(numbers.learning_rate, 0, kHuge))
    return "the learning rate must be finite and not negative";
  if (!InRange(numbers.weight_decay, 0, kHuge))
    return "the weight decay must be finite and not negative";
  const OptimizerSpec own = WithNumbers(spec, numbers);
  // Fields that the rule does not use would be stored, and trusted later.
  if (numbers != NumbersOf(own, numbers.learning_rate, numbers.weight_decay))
    return "a number is given that the rule does not have";
  if (const char* why = WhyBad(own, parameters)) return why;
  if (NeedsMomentum(own) != NeedsMomentum(spec))
    return "momentum was 0 when the job began and is not now, or the other way round";
  return nullptr;
}

const char* NameOf(OptimizerRule rule) {
  const auto at = static_cast<uint32_t>(rule);
  return at < kRules.size() ? kRules[at].name : nullptr;
}

const char* NameOf(StateForm form) {
  const auto at = static_cast<uint32_t>(form);
  return at < kForms.size() ? kForms[at].name : nullptr;
}

std::optional<OptimizerRule> RuleFromName(std::string_view name) {
  for (uint32_t i = 0; i < kRules.size(); ++i) {
    if (name == kRules[i].name) return static_cast<OptimizerRule>(i);
  }
  return std::nullopt;
}

std::optional<StateForm> StateFormFromName(std::string_view name) {
  for (uint32_t i = 0; i < kForms.size(); ++i) {
    if (name == kForms[i].name) return static_cast<StateForm>(i);
  }
  return std::nullopt;
}

std::span<const char* const> RuleNames() {
  return kRuleNames;
}

std::span<const char* const> StateFormNames() {
  return kFormNames;
}

bool NeedsMomentum(const OptimizerSpec& spec) {
  if (spec.rule == OptimizerRule::kSgd) return spec.momentum > 0;
  return kRules[static_cast<uint32_t>(spec.rule)].momentum;
}

bool NeedsVariance(const OptimizerSpec& spec) {
  return kRules[static_cast<uint32_t>(spec.rule)].variance;
}

uint64_t MixBits(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

uint64_t RoundingSeedOf(const OptimizerSpec& spec, std::string_view parameter) {
  uint64_t seed = MixBits(spec.rounding_seed + 0x9e3779b97f4a7c15);
  for (const char c : parameter) seed = MixBits(seed + static_cast<uint8_t>(c) + 1);
  return seed;
}

uint64_t MasterBytes(StateForm form, uint64_t elements) {
  return elements * LineOf(form).master_bytes;
}

uint64_t MomentBytes(StateForm form, uint64_t elements) {
  if (form != StateForm::kSplit8) return elements * LineOf(form).moment_bytes;
  return ScalesOffset(elements) + DivideUp(elements, kScaleBlockElements) * sizeof(float);
}

uint64_t ScalesOffset(uint64_t elements) {
  return RoundUp(elements, kLineBytes);
}

}  // namespace tidepool

#include "trainer/cli/flag_effects.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace tidepool::trainer {
namespace {

constexpr std::array kEffects{
    FlagEffect{"--beta1", "--optimizer", "adamw,adam,lion", "give --optimizer adamw"},
    FlagEffect{"--beta2", "--optimizer", "adamw,adam,lion", "give --optimizer adamw"},
    FlagEffect{"--eps", "--optimizer", "adamw,adam,adagrad", "give --optimizer adamw"},
    FlagEffect{"--momentum", "--optimizer", "sgd", "give --optimizer sgd"},
    FlagEffect{"--dampening", "--optimizer", "sgd", "give --optimizer sgd"},
    FlagEffect{"--nesterov", "--optimizer", "sgd", "give --optimizer sgd"},
    FlagEffect{"--lr-decay", "--optimizer", "adagrad", "give --optimizer adagrad"},
    FlagEffect{"--lora-alpha", "--lora-rank", "given", "give --lora-rank 8"},
    FlagEffect{"--lora-targets", "--lora-rank", "given", "give --lora-rank 8"},
    FlagEffect{"--min-lr", "--schedule", "linear,cosine", "give --schedule cosine"},
    FlagEffect{"--eval-batches", "--eval-every", "given", "give --eval-every 50"},
    FlagEffect{"--deterministic", "--device", "auto,cuda", "give --device cuda"},
    FlagEffect{"--dynamic-rcache", "--device-memory", "given", "give --device-memory 8GiB"},
    FlagEffect{"--dynamic-rcache", "--rcache", "auto", "give --rcache auto"},
    FlagEffect{"--pool", "--standalone", "true", "give --standalone"},
    FlagEffect{"--wait", "--standalone", "false", "leave --standalone out"},
    FlagEffect{"--or-new", "--resume", "auto", "give --resume auto"},
    FlagEffect{"--or-new", "--standalone", "false", "leave --standalone out"},
    FlagEffect{"--server-timeout", "--standalone", "false", "leave --standalone out"},
    FlagEffect{"--rejoin-timeout", "--standalone", "false", "leave --standalone out"},
    FlagEffect{"--rejoin-timeout", "--resume", "auto", "give --resume auto"},
    FlagEffect{"--checkpoint-every", "--checkpoint-dir", "given",
               "give --checkpoint-dir checkpoints"},
    FlagEffect{"--keep", "--checkpoint-every", "given",
               "give --checkpoint-every 100 --checkpoint-dir checkpoints"},
    FlagEffect{"--durable-steps", "--checkpoint-every", "given",
               "give --checkpoint-every 100 --checkpoint-dir checkpoints"},
    FlagEffect{"--sync-steps", "--durable-steps", "given",
               "give --durable-steps steps --checkpoint-every 100 --checkpoint-dir checkpoints"},
    FlagEffect{"--log-every", "--quiet", "false", "leave --quiet out"},
    FlagEffect{"--verbose", "--dry-run", "false", "leave --dry-run out"},
};

// The value in the table's form: see FlagEffect.
std::string Named(std::string value) {
  const bool is_word = value.find_first_not_of("0.") != std::string::npos;
  if (value.empty() || !is_word) return {};
  return value;
}

bool Holds(std::string_view values, const std::string& value) {
  if (values == "given") return !value.empty();
  for (size_t at = 0; at <= values.size();) {
    const size_t end = std::min(values.find(',', at), values.size());
    const std::string_view one = values.substr(at, end - at);
    // "cuda" also matches "cuda:1".
    if (value == one || value.starts_with(std::string(one) + ":")) return true;
    at = end + 1;
  }
  return false;
}

// Restarts by torchrun make --resume auto the default.
bool ResumesByItself() {
  return std::getenv("TORCHELASTIC_RUN_ID") != nullptr;
}

// Two numeric flags of which the first must not exceed the second.
struct UpperBound {
  const char *flag, *bound, *what, *fix;
};
constexpr std::array kBounds{
    UpperBound{"--warmup", "--steps", "the run would end before it reaches its rate",
               "give fewer steps of warm-up, or more --steps"},
    UpperBound{"--min-lr", "--lr", "the schedule would climb",
               "give a lower --min-lr, or a higher --lr"},
};

double Number(const std::optional<std::string>& text) {
  return text ? std::strtod(text->c_str(), nullptr) : 0;
}

Status Refusal(const std::string& what, const std::string& fix) {
  return Status(ErrorId::kUsageError, what).Where("command line of trainer").Fix(fix);
}

// Checkpoints, memserver and a resumed run depend on one another by more than two flags.
Status CheckResumeFlags(const GivenFlags& flags) {
  const std::string resume = flags.value("--resume").value_or("");
  const bool has_folder = flags.given("--checkpoint-dir");
  const bool resumes = (resume != "never" && !resume.empty()) || ResumesByItself();

  if (has_folder && !flags.given("--checkpoint-every") && !resumes) {
    return Refusal("--checkpoint-dir has no effect without --checkpoint-every or --resume",
                   "leave --checkpoint-dir out, or give --checkpoint-every 100");
  }
  if (resume == "auto" && flags.value("--standalone") == "true" && !has_folder) {
    return Refusal(
        "--resume auto has no effect beside --standalone, whose memserver ends with the run",
        "leave --standalone out, or give --checkpoint-dir checkpoints");
  }
  return {};
}

}  // namespace

std::span<const FlagEffect> FlagEffects() {
  return kEffects;
}

const FlagEffect* WhyNoEffect(const GivenFlags& flags, std::string_view flag) {
  for (const FlagEffect& effect : kEffects) {
    if (flag != effect.flag) continue;
    const std::optional<std::string> other = flags.value(effect.other);
    if (!other || Holds(effect.values, Named(*other))) continue;
    if (std::string_view(effect.other) == "--resume" && other->empty() && ResumesByItself())
      continue;
    return &effect;
  }
  return nullptr;
}

bool Contradicts(const GivenFlags& flags, std::string_view flag) {
  return std::any_of(kBounds.begin(), kBounds.end(), [&](const UpperBound& each) {
    return flag == each.flag && flags.value(each.bound) &&
           Number(flags.value(each.flag)) > Number(flags.value(each.bound));
  });
}

Status CheckFlagEffects(const GivenFlags& flags) {
  for (const FlagEffect& effect : kEffects) {
    if (!flags.given(effect.flag) || WhyNoEffect(flags, effect.flag) != &effect) continue;
    const std::string value = Named(flags.value(effect.other).value_or(""));
    const bool is_switch = value == "true" || value == "false";
    const std::string beside =
        value.empty() || value == "false"
            ? "without " + std::string(effect.other)
            : "beside " + std::string(effect.other) + (is_switch ? "" : " " + value);
    return Refusal(std::string(effect.flag) + " has no effect " + beside,
                   "leave " + std::string(effect.flag) + " out, or " + effect.fix);
  }

  for (const UpperBound& each : kBounds) {
    if (!flags.given(each.flag) || !Contradicts(flags, each.flag)) continue;
    return Refusal(std::string(each.flag) + " " + *flags.value(each.flag) + " is above " +
                       each.bound + " " + *flags.value(each.bound) + ": " + each.what,
                   each.fix);
  }
  return CheckResumeFlags(flags);
}

}  // namespace tidepool::trainer

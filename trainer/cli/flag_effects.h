// Which flags have an effect only beside others, and the refusal of those that would have none.
//
// A flag that silently does nothing costs its user a run: `--momentum 0.8` beside AdamW, `--pool`
// without `--standalone`. The table is the one place that knows; --print-config leaves out what it
// refuses. Main thread; torch-free.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tidepool::trainer {

// `flag` has an effect only where `other` has one of `values` (comma-separated). The value of a
// switch is true or false, and that of a flag that is empty unless it is given is "given" or "".
struct FlagEffect {
  const char* flag;
  const char* other;
  const char* values;
  const char* fix;  // what to do in place of leaving the flag out
};
std::span<const FlagEffect> FlagEffects();

// A command line as it was read. Both take a flag's name with its dashes.
struct GivenFlags {
  // The value in effect, given or default; nothing where the command has no such flag.
  std::function<std::optional<std::string>(std::string_view)> value;
  std::function<bool(std::string_view)> given;
};

// The row of the table that leaves `flag` without an effect; nullptr where it has one.
const FlagEffect* WhyNoEffect(const GivenFlags& flags, std::string_view flag);

// True for a flag whose number contradicts another one: --warmup beyond --steps, --min-lr above
// --lr.
bool Contradicts(const GivenFlags& flags, std::string_view flag);

// Errors: kUsageError, which names the first flag that was given and has no effect or contradicts
// another one.
Status CheckFlagEffects(const GivenFlags& flags);

}  // namespace tidepool::trainer

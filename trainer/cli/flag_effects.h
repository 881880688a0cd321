// Flags that have an effect only with other flags, and the refusal of those without an effect.
//
// A flag that silently does nothing costs its user a run: `--momentum 0.8` with AdamW, `--pool`
// without `--standalone`. The table holds all such rules; --print-config leaves out flags that it
// refuses. Main thread; torch-free.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tidepool::trainer {

// `flag` has an effect only if `other` has one of `values` (comma-separated). A switch has the
// value true or false; a flag that is empty unless given has the value "given" or "".
struct FlagEffect {
  const char* flag;
  const char* other;
  const char* values;
  const char* fix;  // advice other than to leave the flag out
};
std::span<const FlagEffect> FlagEffects();

// A parsed command line. Both functions take a flag's name with its dashes.
struct GivenFlags {
  // The value in effect, given or default; nullopt if the command has no such flag.
  std::function<std::optional<std::string>(std::string_view)> value;
  std::function<bool(std::string_view)> given;
};

// The table row that makes `flag` ineffective; null if it has an effect.
const FlagEffect* WhyNoEffect(const GivenFlags& flags, std::string_view flag);

// True for a flag whose number contradicts another one: --warmup beyond --steps, --min-lr above
// --lr.
bool Contradicts(const GivenFlags& flags, std::string_view flag);

// Errors: kUsageError, naming the first given flag that has no effect or contradicts another.
Status CheckFlagEffects(const GivenFlags& flags);

}  // namespace tidepool::trainer

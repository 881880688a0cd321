// AttemptCount: how many attempts of a run in a row have ended without a new sealed step, so that a
// run which gets nowhere ends.
//
// One thread; a value type. Steps are counted by the version that was sealed when an attempt ended,
// never by where an attempt began: one that fails before it has a slot has no beginning. A rank
// that replaces its program by itself passes Text on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"

namespace tidepool::trainer {

inline constexpr uint32_t kFruitlessAttempts = 5;
// The environment variable that carries Text.
inline constexpr const char* kAttemptsVariable = "TIDEPOOL_ATTEMPTS";

class AttemptCount {
 public:
  // `text`: from the program before; any other text counts from zero.
  explicit AttemptCount(const std::string& text = "");

  // An attempt has got a slot behind `sealed`. At the first attempt this is not progress yet. At a
  // later one it changes nothing, unless it begins further back than the run had come, because its
  // states are gone.
  void BeginsAt(Version sealed);
  // An attempt has ended; the last sealed step is `sealed`. False: the run may not try again.
  bool MayTryAgain(Version sealed);
  std::string Text() const;

 private:
  uint32_t fruitless_ = 0;
  std::optional<Version> counted_;  // sealed when an attempt ended last
};

}  // namespace tidepool::trainer

// AttemptCount: counts consecutive attempts of a run that ended without a new sealed step, so that
// a run without progress ends.
//
// One thread; a value type. Progress is measured by the version sealed at the end of an attempt,
// never by where an attempt began: one that fails before it has a slot has no beginning. A rank
// that replaces its own program passes Text on.
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
  // `text`: from the previous program; any other text starts at zero.
  explicit AttemptCount(const std::string& text = "");

  // An attempt has got a slot after version `sealed`. At the first attempt this is no progress yet.
  // At a later one it changes nothing, unless it begins further back than the run had got, because
  // its states are gone.
  void BeginsAt(Version sealed);
  // An attempt has ended with last sealed version `sealed`. False: the run may not try again.
  bool MayTryAgain(Version sealed);
  std::string Text() const;

 private:
  uint32_t fruitless_ = 0;
  std::optional<Version> counted_;  // sealed at the end of the last attempt
};

}  // namespace tidepool::trainer

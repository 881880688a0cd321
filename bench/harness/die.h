// Die: ends a benchmark that cannot measure.
//
// Any thread; a failure ends the program.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace tidepool::bench {

// Ends the program with a message and exit code 1.
[[noreturn]] void Die(const std::string& message);
template <typename T>
T OrDie(Result<T> result) {
  if (!result.ok()) Die(result.status().Format());
  return std::move(result).value();
}
inline void OrDie(const Status& status) {
  if (!status.ok()) Die(status.Format());
}

}  // namespace tidepool::bench

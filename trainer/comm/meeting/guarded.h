// Guarded: calls c10, c10d and Gloo and turns their exceptions into a Status.
//
// Any thread.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "base/status.h"
#include "trainer/comm/meeting/first_line.h"

namespace tidepool::trainer {

// Runs `body`. Errors: kCollectiveFailed; `doing` describes the failed action.
template <typename Body>
Status Guarded(const std::string& doing, Body&& body) {
  try {
    body();
    return {};
  } catch (const c10::Error& error) {
    return Status(ErrorId::kCollectiveFailed, doing).Why(FirstLine(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return Status(ErrorId::kCollectiveFailed, doing).Why(FirstLine(error.what()));
  }
}

}  // namespace tidepool::trainer

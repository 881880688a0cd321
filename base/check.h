// TP_CHECK: an assertion about our own code; a violation is a bug, and stops the process with
// location and text. It stays on in release.
//
// Never for a peer's bytes, a disk, a device or a user's input: those errors are Status.
#pragma once

namespace tidepool {
// Called by TP_CHECK: writes location, condition and message to stderr, and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const char* message);
}  // namespace tidepool

#define TP_CHECK(condition, message) \
  (static_cast<bool>(condition)      \
       ? static_cast<void>(0)        \
       : ::tidepool::CheckFailed(__FILE__, __LINE__, #condition, message))

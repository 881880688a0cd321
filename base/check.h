// TP_CHECK: a promise of our own code; broken means a bug, and the process stops with the place and
// the text. It stays on in release.
//
// Never for a peer's bytes, a disk, a device or a user's input: those are Status.
#pragma once

namespace tidepool {
// What TP_CHECK calls: writes place, condition and message to stderr, and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const char* message);
}  // namespace tidepool

#define TP_CHECK(condition, message) \
  (static_cast<bool>(condition)      \
       ? static_cast<void>(0)        \
       : ::tidepool::CheckFailed(__FILE__, __LINE__, #condition, message))

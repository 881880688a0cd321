// NotifyServiceManager: reports the service's state to systemd (or another manager that has set
// NOTIFY_SOCKET); does nothing without that variable.
//
// Any thread. `state` is one of the texts of sd_notify(3): "READY=1", "STOPPING=1", "STATUS=...",
// "FDSTORE=1\nFDNAME=...".
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tidepool::memserver {

// True if a message was sent, with `fds` (at most shm::kPacketFdsMax; they stay the caller's).
// Waits up to 5 s for room in the manager's queue, since stored and removed descriptors and
// readiness must be reported.
bool NotifyServiceManager(const std::string& state, std::span<const int> fds = {});
// A message that nobody depends on ("WATCHDOG=1", "STATUS=...", "STOPPING=1"): never waits, false
// if there is no room.
bool NotifyIfRoom(const std::string& state);

// The interval at which the service manager expects "WATCHDOG=1" (WATCHDOG_USEC of the unit); 0:
// not at all.
int64_t WatchdogNs();

}  // namespace tidepool::memserver

// NotifyServiceManager: tells systemd (or another manager that has set NOTIFY_SOCKET) how the
// service stands; nothing happens without that variable.
//
// Any thread. `state` is one of the texts of sd_notify(3): "READY=1", "STOPPING=1", "STATUS=...",
// "FDSTORE=1\nFDNAME=...".
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tidepool::memserver {

// True when a message was sent, with `fds` (at most shm::kPacketFdsMax; they stay the caller's). It
// waits up to 5 s for room in the manager's queue: what is stored, taken out and ready must be
// heard.
bool NotifyServiceManager(const std::string& state, std::span<const int> fds = {});
// One that nobody depends on ("WATCHDOG=1", "STATUS=...", "STOPPING=1"): never waits, false where
// there is no room.
bool NotifyIfRoom(const std::string& state);

// How often the service manager wants to hear "WATCHDOG=1" (WATCHDOG_USEC of the unit); 0: not at
// all.
int64_t WatchdogNs();

}  // namespace tidepool::memserver

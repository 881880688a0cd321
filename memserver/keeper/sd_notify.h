// NotifyServiceManager: tells systemd (or whoever set NOTIFY_SOCKET) how the service stands; nothing happens without that variable.
//
// Any thread. `state` is one of the texts of sd_notify(3): "READY=1", "STOPPING=1", "STATUS=...", "FDSTORE=1\nFDNAME=...".
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tidepool::memserver {

// True when a message was sent, with `fds` (at most shm::kPacketFdsMax; they stay the caller's). A message with descriptors waits up to
// 5 s for room in the manager's queue; one without is left out when there is none.
bool NotifyServiceManager(const std::string& state, std::span<const int> fds = {});

// How often the service manager wants to hear "WATCHDOG=1" (WATCHDOG_USEC of the unit); 0: not at all.
int64_t WatchdogNs();

}  // namespace tidepool::memserver

// NotifyServiceManager: tells systemd (or whoever set NOTIFY_SOCKET) how the service stands; nothing happens without that variable.
//
// Any thread. `state` is one of the texts of sd_notify(3): "READY=1", "STOPPING=1", "STATUS=...".
#pragma once

#include <string>

namespace tidepool::memserver {

// True when a message was sent.
bool NotifyServiceManager(const std::string& state);

}  // namespace tidepool::memserver

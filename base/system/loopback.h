// Loopback: listening sockets that nobody on another machine reaches.
//
// Any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool {

// "127.0.0.1:9465", "[::1]:9465": what ListenLoopback can be asked for.
bool IsLoopback(const std::string& address);
// Such an address; port 0: any that is free. `flag` is named in errors: kConfigBadValue (no address
// of the loopback, or no port), kSocketFailed.
Result<UniqueFd> ListenLoopback(const std::string& address, const std::string& flag);
// True where a `Host` header names the loopback, with any port (a tunnel may have changed it). Any
// other name that leads here may be an attacker's, whose pages could then read the answers (DNS
// rebinding).
bool IsLoopbackName(std::string_view host);
// Where such a socket listens, in the same form.
std::string AddressOf(const UniqueFd& listening);

}  // namespace tidepool

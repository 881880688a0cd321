// Loopback: listening sockets that other machines cannot reach.
//
// Any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool {

// True for the forms that ListenLoopback accepts: "127.0.0.1:9465", "[::1]:9465".
bool IsLoopback(const std::string& address);
// Listens on such an address; port 0: any free one. `flag` is named in errors: kConfigBadValue (not
// a loopback address, or no port), kSocketFailed.
Result<UniqueFd> ListenLoopback(const std::string& address, const std::string& flag);
// True if a `Host` header names the loopback, with any port (a tunnel may have changed it). Any
// other name that resolves here may be an attacker's, whose pages could then read the answers (DNS
// rebinding).
bool IsLoopbackName(std::string_view host);
// The address of such a socket, in the same form.
std::string AddressOf(const UniqueFd& listening);

}  // namespace tidepool

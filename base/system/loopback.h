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
// Is this what a `Host` header says who has come by a name of the loopback, with any port (which a
// tunnel may have changed)? A name of an attacker that leads here is none of them: its pages could
// otherwise read what is answered (DNS rebinding).
bool IsLoopbackName(std::string_view host);
// Where such a socket listens, in the same form.
std::string AddressOf(const UniqueFd& listening);

}  // namespace tidepool

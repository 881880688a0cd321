// Acceptor: takes waiting clients from a listening socket. When no descriptor is left, a client is
// still refused with an error: one descriptor is kept in reserve for that.
//
// One thread (control). The listening socket is the caller's and outlives the acceptor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/control/access.h"

namespace tidepool::memserver {

// Connections that exist, and how many are allowed.
struct ConnectionCount {
  size_t present = 0;
  uint32_t most = 0;
};
// Ok when one more client of this user may be accepted. Errors: kTooManySessions.
Status CheckConnections(const ConnectionCount& all, const ConnectionCount& of_user,
                        const PeerUser& user);

class Acceptor {
 public:
  explicit Acceptor(int listening);
  // The next client; an invalid descriptor when nobody waits. Errors: kTooManySessions (no
  // descriptor left, here or in the system; one waiting client has been refused with this status).
  Result<UniqueFd> Next();

 private:
  UniqueFd AcceptOne() const;
  Status RefuseWithSpare();
  int listening_;
  UniqueFd spare_;
};

}  // namespace tidepool::memserver

// Acceptor: takes waiting clients from a listening socket. With no descriptor left, a client is still refused by name: one descriptor is
// kept in reserve for that.
//
// One thread (control). The listening socket is the caller's and outlives the acceptor.
#pragma once

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::memserver {

class Acceptor {
 public:
  explicit Acceptor(int listening);
  // The next client; an invalid descriptor when nobody waits. Errors: kTooManySessions (no descriptor left, here or in the system; one
  // waiting client has been refused with this status).
  Result<UniqueFd> Next();

 private:
  UniqueFd AcceptOne() const;
  Status RefuseWithSpare();
  int listening_;
  UniqueFd spare_;
};

}  // namespace tidepool::memserver

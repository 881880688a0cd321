// ReservedPort: a TCP port of 127.0.0.1 that nobody else gets while this object lives, for a listener that is still to be started.
//
// Any thread. It holds a socket that is bound and does not listen. The system gives the port to nobody who asks for any free one, neither
// to listen nor to connect from; who names it and sets SO_REUSEADDR (as trainer/comm/meeting_port.h does) may listen there, one after the
// other. Children of this process do not inherit it.
#pragma once

#include <cstdint>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

class ReservedPort {
 public:
  // Errors: kInternal (the system refuses a socket, or has no free port).
  static Result<ReservedPort> Take();

  uint16_t port() const { return port_; }

 private:
  ReservedPort(UniqueFd socket_fd, uint16_t port) : socket_(std::move(socket_fd)), port_(port) {}

  UniqueFd socket_;
  uint16_t port_;
};

}  // namespace tidepool::trainer

// The TCP port where the ranks of a run meet: opening it, looking whether it is open, and waits
// that can be interrupted.
//
// Any thread; no state. TCPStore would do the first two itself, with faults: it listens on every
// interface, unprotected; its server asks for the name of each peer, which for an IPv4 address seen
// through an IPv6 socket takes a name server seconds to refuse; and its wait for a server that is
// not there yet cannot be interrupted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "trainer/comm/meeting/rendezvous.h"

namespace tidepool::trainer {

// A socket that listens on 127.0.0.1 alone; 0 chooses a free port. Invalid on error, see errno.
UniqueFd ListenOnLoopback(uint16_t port);
// The port of a listening IPv4 socket; 0 on error.
uint16_t BoundPort(int fd);

// True when somebody listens at the run's meeting point now.
bool SomebodyListens(const Rendezvous& meet);

// Asks `there` some twenty times a second until it says yes; `doing` says what failed.
// Errors: kRanksMissing (the time to gather has passed), what meet.interrupted returned, what
// `there` failed with.
Status WaitUntil(const Rendezvous& meet, const std::string& doing,
                 const std::function<Result<bool>()>& there);

}  // namespace tidepool::trainer

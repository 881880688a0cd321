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
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "trainer/comm/meeting/rendezvous.h"

namespace tidepool::trainer {

// A socket that listens on 127.0.0.1 alone; 0 chooses a free port. Invalid on error, see errno.
UniqueFd ListenOnLoopback(uint16_t port);
// The port of a listening IPv4 socket; 0 on error.
uint16_t BoundPort(int fd);

// True when a process listens at the run's meeting point now.
bool SomebodyListens(const Rendezvous& meet);

// The ranks that have not come, in order; none when all have. `exactly`: this is about to be told;
// else the answer may name some that came a while ago.
using MissingRanks = std::function<Result<std::vector<uint32_t>>(bool exactly)>;

// Asks `missing` some twenty times a second until no rank is; `doing` says what failed. Errors:
// kRanksMissing (see patience.h), what meet.interrupted returned, what `missing` failed with.
Status AwaitRanks(const Rendezvous& meet, const std::string& doing, const MissingRanks& missing);

}  // namespace tidepool::trainer

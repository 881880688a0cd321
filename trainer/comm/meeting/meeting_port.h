// The TCP port at which the ranks of a run meet: opens it, checks whether it is open, and waits
// interruptibly.
//
// Any thread; no state. TCPStore does the first two itself, with faults: it listens on every
// interface, unprotected; its server looks up each peer's name, which a name server takes seconds
// to refuse for an IPv4 address on an IPv6 socket; and its wait for a server that is not up yet
// cannot be interrupted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "trainer/comm/meeting/rendezvous.h"

namespace tidepool::trainer {

// A socket listening on 127.0.0.1 only; 0 chooses a free port. Invalid on error, see errno.
UniqueFd ListenOnLoopback(uint16_t port);
// The port of a listening IPv4 socket; 0 on error.
uint16_t BoundPort(int fd);

// True when a process listens at the run's meeting point now.
bool SomebodyListens(const Rendezvous& meet);

// The missing ranks, in order; empty when all have come. `exactly`: the user is about to be told;
// otherwise the answer may name some that came a while ago.
using MissingRanks = std::function<Result<std::vector<uint32_t>>(bool exactly)>;

// Calls `missing` about twenty times a second until it is empty; `doing` describes the wait in
// errors. Errors: kRanksMissing (see patience.h), those of meet.interrupted and `missing`.
Status AwaitRanks(const Rendezvous& meet, const std::string& doing, const MissingRanks& missing);

}  // namespace tidepool::trainer

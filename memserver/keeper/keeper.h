// RunKeeper: the process that outlives memserver and holds the descriptors of its memory
// (docs/durability.md).
//
// A process of its own with one thread. It never maps the memory, so nothing that goes wrong in
// memserver can go wrong here.
// Invariants:
//  1. one memserver at a time, of the same user; only the kernel's word (end of the connection)
//     counts as its death;
//  2. after a death without a farewell (a start that failed is one) the command is executed again:
//     at once, then with a pause that grows to half a minute, without end: memory is never given up
//     because starts fail. Where nothing is held, kStartsMax starts are enough;
//  3. the lease runs only while no server is tried: after kPart, and with no_respawn, for a server
//     that another process starts;
//  4. it ends after kEnd, when the lease is over, or when there is nothing left to hold and nobody
//     to start;
//  5. with `stays` the reasons of 4 only empty it: it waits for the next memserver, and ends with
//     SIGTERM or SIGINT, once no memserver is connected. Something else starts such a keeper, and
//     memserver (--keeper external): the two containers of a pod.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace tidepool::memserver {

// What a keeper is started with.
struct KeeperOptions {
  int listen_fd = -1;                // inherited: a listening socket, bound to a path
  uint64_t lease_ms = 0;             // how long memory is held without a memserver
  bool no_respawn = false;           // hold only
  std::vector<std::string> command;  // starts memserver; executed again after a crash
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kAuto;
  bool stays = false;  // ends only when it is told to
};

inline constexpr uint32_t kStartsMax = 5;
// A server that has served for so long did not fail to start: the pauses begin anew.
inline constexpr int64_t kSteadyNs = 60 * kNsPerSecond;

// Serves until there is nothing left to keep. Returns the exit code of the process.
int RunKeeper(const KeeperOptions& options);

// The same for a keeper that something else starts.
struct ApartKeeperOptions {
  // Directory of the memserver that it keeps for; made with mode 0700 where it is missing.
  std::string socket_dir;
  uint64_t lease_ms = 0;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kAuto;
};

// Runs a keeper that stays and starts nothing, listening at the socket directory's keeper socket.
// Returns the exit code of the process. Errors: kSocketFailed, kSocketInUse (a keeper listens there
// already).
Result<int> RunKeeperApart(const ApartKeeperOptions& options, Clock* clock);

}  // namespace tidepool::memserver

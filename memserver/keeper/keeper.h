// RunKeeper: the process that outlives memserver and holds the descriptors of its memory
// (docs/durability.md).
//
// A process of its own with one thread. It never maps the memory, so that no fault of memserver's
// can affect it. Invariants:
//  1. one memserver at a time, of the same user; only the kernel's report (end of the connection)
//     counts as its death;
//  2. after a death without a farewell (including a failed start) the command is executed again: at
//     once, then with a pause that grows to half a minute, without limit: memory is never given up
//     because starts fail. If nothing is held, kStartsMax starts are enough;
//  3. the lease runs only while no server is being started: after kPart, and with no_respawn, for a
//     server that another process starts;
//  4. it ends after kEnd, when the lease is over, or when nothing is held and there is no server to
//     start;
//  5. with `stays` the reasons of 4 only empty it: it waits for the next memserver, and ends with
//     SIGTERM or SIGINT, once no memserver is connected. Another program starts such a keeper, and
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

// The parameters of a keeper.
struct KeeperOptions {
  int listen_fd = -1;                // inherited: a listening socket, bound to a path
  uint64_t lease_ms = 0;             // how long memory is held without a memserver
  bool no_respawn = false;           // hold only
  std::vector<std::string> command;  // starts memserver; executed again after a crash
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kAuto;
  bool stays = false;  // ends only on request
};

inline constexpr uint32_t kStartsMax = 5;
// A server that has served for this long did not fail to start: the pauses restart from the
// shortest.
inline constexpr int64_t kSteadyNs = 60 * kNsPerSecond;

// Serves until nothing is left to keep. Returns the exit code of the process.
int RunKeeper(const KeeperOptions& options);

// The same for a keeper that another program starts.
struct ApartKeeperOptions {
  // Directory of its memserver; made with mode 0700 if it is missing.
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

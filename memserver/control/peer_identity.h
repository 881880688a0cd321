// PeerIdentity: who is at the other end of a Unix socket, by the kernel's word.
//
// Any thread. A pid alone may be reused; the pidfd stands for this process for ever and becomes
// readable when it ends, also when a forked child still holds the socket open.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/control/access.h"

namespace tidepool::memserver {

struct PeerIdentity {
  PeerUser user;
  uint64_t process_start = 0;  // see ReadProcessStart
  UniqueFd pidfd;              // invalid where the peer is already gone
};

// UserAt and SO_PEERPIDFD (pidfd_open before Linux 6.5). Errors: kHandshakeBad (no descriptor left,
// or not a Unix socket).
Result<PeerIdentity> IdentifyPeer(int socket);
// When a process started, in clock ticks since the system did (field 22 of /proc/<pid>/stat): with
// the pid it names a process beyond the life of a pidfd, since a pid that is used again starts
// later. 0 when there is no such process or /proc cannot be read.
uint64_t ReadProcessStart(int32_t pid);
// Whether the process of a pidfd has ended.
bool HasEnded(int pidfd);
}  // namespace tidepool::memserver

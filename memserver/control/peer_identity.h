// PeerIdentity: who is at the other end of a Unix socket, as identified by the kernel.
//
// Any thread. A pid alone may be reused; a pidfd refers to this process for ever and becomes
// readable when it ends, even while a forked child still holds the socket open.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/control/access.h"

namespace tidepool::memserver {

struct PeerIdentity {
  PeerUser user;
  uint64_t process_start = 0;  // see ReadProcessStart
  UniqueFd pidfd;              // invalid if the peer is already gone
};

// Combines UserAt and SO_PEERPIDFD (pidfd_open before Linux 6.5). Errors: kHandshakeBad (no
// descriptor left, or not a Unix socket).
Result<PeerIdentity> IdentifyPeer(int socket);
// When a process started, in clock ticks since boot (field 22 of /proc/<pid>/stat). Together with
// the pid it identifies a process beyond the life of a pidfd, since a reused pid starts later. 0 if
// there is no such process or /proc cannot be read.
uint64_t ReadProcessStart(int32_t pid);
// True when the process of a pidfd has ended.
bool HasEnded(int pidfd);
}  // namespace tidepool::memserver

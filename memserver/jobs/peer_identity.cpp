#include "memserver/jobs/peer_identity.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace tidepool::memserver {

namespace {

constexpr int kPeerPidFd = 77;  // SO_PEERPIDFD, missing in headers of older C libraries

UniqueFd PidFdOf(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof fd;
  if (getsockopt(socket, SOL_SOCKET, kPeerPidFd, &fd, &length) == 0) return UniqueFd(fd);
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

Result<PeerIdentity> IdentifyPeer(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return Status(ErrorId::kHandshakeBad, "the peer of a connection cannot be identified").Why(std::strerror(errno));
  }
  PeerIdentity peer{credentials.uid, credentials.pid, PidFdOf(socket, credentials.pid)};
  if (!peer.pidfd.valid() && errno != ESRCH && errno != EINVAL) {
    return Status(ErrorId::kHandshakeBad, "process " + std::to_string(credentials.pid) + " cannot be watched").Why(std::strerror(errno));
  }
  return peer;
}

Status CheckSameUser(const PeerIdentity& peer) {
  const uint32_t own = geteuid();
  if (peer.uid == own || peer.uid == 0) return Status();
  return Status(ErrorId::kNotOwner, "process " + std::to_string(peer.pid) + " of user " + std::to_string(peer.uid) +
                                        " asked for a session; this memserver belongs to user " + std::to_string(own));
}

}  // namespace tidepool::memserver

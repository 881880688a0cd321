#include "memserver/jobs/peer_identity.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

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
  UniqueFd pidfd = PidFdOf(socket, credentials.pid);
  if (!pidfd.valid() && errno != ESRCH && errno != EINVAL) {
    return Status(ErrorId::kHandshakeBad, "process " + std::to_string(credentials.pid) + " cannot be watched").Why(std::strerror(errno));
  }
  return PeerIdentity{credentials.uid, credentials.pid, ReadProcessStart(credentials.pid), std::move(pidfd)};
}

uint64_t ReadProcessStart(int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line, '\0');
  // The name in field 2 may hold anything, also spaces and brackets: counting starts behind its last bracket, with field 3.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  uint64_t start = 0;
  return fields >> start ? start : 0;
}

Status CheckSameUser(const PeerIdentity& peer) {
  const uint32_t own = geteuid();
  if (peer.uid == own || peer.uid == 0) return Status();
  return Status(ErrorId::kNotOwner, "process " + std::to_string(peer.pid) + " of user " + std::to_string(peer.uid) +
                                        " asked for a session; this memserver belongs to user " + std::to_string(own));
}

}  // namespace tidepool::memserver

#include "memserver/control/peer_identity.h"

#include <poll.h>
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
  TP_ASSIGN_OR_RETURN(PeerUser user, UserAt(socket));
  UniqueFd pidfd = PidFdOf(socket, user.pid);
  if (!pidfd.valid() && errno != ESRCH && errno != EINVAL) {
    return Status(ErrorId::kHandshakeBad,
                  "process " + std::to_string(user.pid) + " cannot be watched")
        .Why(std::strerror(errno));
  }
  const uint64_t start = ReadProcessStart(user.pid);
  return PeerIdentity{std::move(user), start, std::move(pidfd)};
}

uint64_t ReadProcessStart(int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line, '\0');
  // The name in field 2 may contain anything, even spaces and brackets, so counting starts after
  // its last bracket, with field 3.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  uint64_t start = 0;
  return fields >> start ? start : 0;
}

bool HasEnded(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

}  // namespace tidepool::memserver

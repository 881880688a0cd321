#include "memserver/control/acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "shm/fd_socket.h"
#include "shm/frames.h"

namespace tidepool::memserver {

namespace {

UniqueFd SpareDescriptor() {
  return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

Status CheckConnections(const ConnectionCount& all, const ConnectionCount& of_user,
                        const PeerUser& user) {
  if (all.present >= all.most) {
    return Status(ErrorId::kTooManySessions, "memserver has " + std::to_string(all.present) +
                                                 " connections, as many as it allows");
  }
  if (of_user.present < of_user.most) return Status();
  return Status(ErrorId::kTooManySessions, "user " + std::to_string(user.uid) + " has " +
                                               std::to_string(of_user.present) +
                                               " connections, as many as one user may have");
}

Acceptor::Acceptor(int listening) : listening_(listening), spare_(SpareDescriptor()) {}

UniqueFd Acceptor::AcceptOne() const {
  return UniqueFd(accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Result<UniqueFd> Acceptor::Next() {
  UniqueFd socket = AcceptOne();
  if (socket.valid() || errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return socket;
  return RefuseWithSpare();
}

Status Acceptor::RefuseWithSpare() {
  spare_.Reset();
  UniqueFd socket = AcceptOne();
  Status why(ErrorId::kTooManySessions, "memserver has no file descriptor left");
  if (socket.valid()) shm::SendPacket(socket.get(), shm::EncodeFrame(shm::RefusedFrame{why}));
  socket.Reset();
  spare_ = SpareDescriptor();
  return why;
}

}  // namespace tidepool::memserver

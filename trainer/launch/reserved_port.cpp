#include "trainer/launch/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace tidepool::trainer {

Result<ReservedPort> ReservedPort::Take() {
  UniqueFd socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  // The later listener may bind beside this socket only if both say so.
  if (!socket_fd.valid() || setsockopt(socket_fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(socket_fd.get(), generic, length) != 0 || getsockname(socket_fd.get(), generic, &length) != 0) {
    return Status(ErrorId::kInternal, "no free port on 127.0.0.1").Why(std::strerror(errno));
  }
  return ReservedPort(std::move(socket_fd), ntohs(address.sin_port));
}

}  // namespace tidepool::trainer

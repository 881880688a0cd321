#include "memserver/keeper/sd_notify.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "shm/fd_socket.h"

namespace tidepool::memserver {

namespace {

constexpr int64_t kRoomNs = 5 * kNsPerSecond;

bool Send(const std::string& state, std::span<const int> fds, int64_t wait_ns) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  if (path == nullptr || (path[0] != '/' && path[0] != '@') ||
      std::strlen(path) >= sizeof address.sun_path)
    return false;

  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path, std::strlen(path));
  if (path[0] == '@') address.sun_path[0] = '\0';  // a name in the abstract space
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  if (!socket.valid() ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    return false;

  const auto bytes = std::as_bytes(std::span(state));
  auto sent = shm::SendPacket(socket.get(), bytes, fds);
  if (sent == shm::SocketResult::kWouldBlock && wait_ns > 0 &&
      shm::WaitForSocket(socket.get(), POLLOUT, wait_ns)) {
    sent = shm::SendPacket(socket.get(), bytes, fds);
  }
  return sent == shm::SocketResult::kDone;
}

}  // namespace

bool NotifyServiceManager(const std::string& state, std::span<const int> fds) {
  return Send(state, fds, kRoomNs);
}

bool NotifyIfRoom(const std::string& state) {
  return Send(state, {}, 0);
}

int64_t WatchdogNs() {
  const char* micros = std::getenv("WATCHDOG_USEC");
  const char* pid = std::getenv("WATCHDOG_PID");
  if (micros == nullptr || (pid != nullptr && std::strtol(pid, nullptr, 10) != getpid())) return 0;
  return std::max(0L, std::strtol(micros, nullptr, 10)) * (kNsPerMs / 1000);
}

}  // namespace tidepool::memserver

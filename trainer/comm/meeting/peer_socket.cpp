#include "trainer/comm/meeting/peer_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/planted.h"

namespace tidepool::trainer {
namespace {

// The length to pass with the address; 0 for a name that is too long.
socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address->sun_path) return 0;
  std::copy(name.begin(), name.end(), address->sun_path + 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

UniqueFd MakePacketSocket() {
  return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

UniqueFd ListenAbstract(const std::string& name) {
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name, &address);
  UniqueFd fd = MakePacketSocket();
  if (length == 0 || !fd.valid() ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return {};
  }
  return fd;
}

std::vector<std::string> FindListening(const std::string& prefix) {
  std::vector<std::string> names;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    // "Num RefCount Protocol Flags Type St Inode Path"; an abstract name is shown with a leading @.
    std::istringstream words(line);
    std::string number, references, protocol, flags, type, state, inode, path;
    words >> number >> references >> protocol >> flags >> type >> state >> inode >> path;
    constexpr const char* kAccepts = "00010000";
    if (flags == kAccepts && path.starts_with("@" + prefix)) names.push_back(path.substr(1));
  }
  return names;
}

UniqueFd ConnectAbstract(const std::string& name) {
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name, &address);
  UniqueFd fd = MakePacketSocket();
  if (length == 0 || !fd.valid()) return {};
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return {};
  return fd;
}

UniqueFd AcceptPeer(int listener) {
  return UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

bool OwnedByUs(int socket) {
  if (TP_PLANTED("comm.user_unchecked")) return true;
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         length == sizeof peer && peer.uid == geteuid();
}

SocketPair MakePair(int type) {
  std::array<int, 2> fds{};
  if (socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) != 0) return {};
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

PacketResult SendPacket(int socket, std::span<const std::byte> packet, int fd) {
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;

  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }

  ssize_t sent = -1;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(packet.size())) return PacketResult::kDone;
  return errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS ? PacketResult::kWouldBlock
                                                                      : PacketResult::kClosed;
}

PacketResult ReceivePacket(int socket, std::span<std::byte> packet, UniqueFd* fd) {
  iovec part{packet.data(), packet.size()};
  // CMSG_SPACE rounds up: without the length set below, two descriptors would fit.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));

  ssize_t got = -1;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  fd->Reset();
  if (got < 0) return errno == EAGAIN ? PacketResult::kWouldBlock : PacketResult::kClosed;

  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof received);
    *fd = UniqueFd(received);
  }
  if (got == 0) return PacketResult::kClosed;
  const bool cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  return cut || got != static_cast<ssize_t>(packet.size()) ? PacketResult::kMalformed
                                                           : PacketResult::kDone;
}

}  // namespace tidepool::trainer

#include "shm/fd_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/planted.h"
#include "base/system/poll_left.h"

namespace tidepool::shm {

namespace {

// Senders do not wait, and take a full socket for a client that does not read. A shortage of memory
// must not look like one.
constexpr int kShortageTries = 4;

// Storage for one control message of kPacketFdsMax descriptors; the caller chooses how much of it
// is offered to the kernel.
struct alignas(cmsghdr) ControlBuffer {
  std::array<std::byte, CMSG_SPACE(sizeof(int) * kPacketFdsMax)> bytes{};
};

// A resource that the system lacks now may be available soon: peer and packet are still there.
SocketResult FromErrno() {
  if (IsShortage(errno))
    return TP_PLANTED("shm.shortage_is_the_end") ? SocketResult::kClosed
                                                 : SocketResult::kWouldBlock;
  switch (errno) {
    case EAGAIN:
    case EINTR: return SocketResult::kWouldBlock;
    case EMSGSIZE: return SocketResult::kMalformed;
    default: return SocketResult::kClosed;
  }
}

// Takes ownership of every descriptor in the control messages; false if there is anything other
// than descriptors.
bool TakeDescriptors(msghdr* message, std::vector<UniqueFd>* fds) {
  bool clean = true;
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      clean = false;
      continue;
    }

    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      fds->emplace_back(fd);
    }
  }
  return clean;
}

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Status(ErrorId::kSocketFailed, "the socket path is longer than " +
                                              std::to_string(sizeof address.sun_path - 1) +
                                              " characters")
        .Where(path);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Status SocketError(const char* step, const std::string& path) {
  return Status(ErrorId::kSocketFailed, std::string("cannot ") + step + " the socket")
      .Where(path)
      .Why(std::strerror(errno));
}

}  // namespace

bool IsShortage(int error) {
  return error == ENOMEM || error == ENOBUFS || error == ETOOMANYREFS;
}

SocketResult SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  TP_CHECK(!bytes.empty() && bytes.size() <= kPacketBytesMax && fds.size() <= kPacketFdsMax,
           "a packet of our own is too large");

  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;

  if (!fds.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }

  for (int tries = kShortageTries;;) {
    if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return SocketResult::kDone;
    if (!IsShortage(errno) || --tries == 0 || TP_PLANTED("shm.shortage_not_tried_again"))
      return FromErrno();
  }
}

SocketResult PeekPacket(int socket, PacketHead* head) {
  iovec part{head->bytes.data(), head->bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ssize_t received = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
  // As in ReceivePacket.
  if (received < 0 && errno == ECONNRESET)
    received = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
  if (received < 0) return FromErrno();
  head->count = static_cast<size_t>(received);
  head->descriptors = (message.msg_flags & MSG_CTRUNC) != 0;
  return received == 0 ? SocketResult::kClosed : SocketResult::kDone;
}

SocketResult ReceivePacket(int socket, uint32_t fds_max, Packet* packet) {
  TP_CHECK(fds_max <= kPacketFdsMax, "more descriptors than a packet may carry");
  packet->fds.clear();
  packet->bytes.resize(kPacketBytesMax);
  iovec part{packet->bytes.data(), packet->bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;

  message.msg_control = fds_max == 0 ? nullptr : control.bytes.data();
  message.msg_controllen =
      fds_max == 0 ? 0
                   : (TP_PLANTED("shm.control_space") ? CMSG_SPACE(sizeof(int) * fds_max)
                                                      : CMSG_LEN(sizeof(int) * fds_max));
  ssize_t received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  // A peer that closed with unread packets leaves this error ahead of its own last packets, which
  // say why.
  if (received < 0 && errno == ECONNRESET)
    received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0) return FromErrno();

  const bool clean =
      ((message.msg_flags & MSG_CTRUNC) != 0 && TP_PLANTED("shm.descriptors_leaked")) ||
      TakeDescriptors(&message, &packet->fds);
  packet->bytes.resize(static_cast<size_t>(received));
  if (clean && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0)
    return received == 0 ? SocketResult::kClosed : SocketResult::kDone;
  packet->fds.clear();
  return SocketResult::kMalformed;
}

bool WaitForSocket(int socket, short events, int64_t timeout_ns) {
  int64_t left_ns = timeout_ns;
  for (;;) {
    pollfd entry{socket, events, 0};
    const int ready = PollLeft(&entry, &left_ns);
    if (ready == 0) return false;
    // For an error other than EINTR, the next call on the socket reports it.
    if (ready > 0 || errno != EINTR) return true;
  }
}

namespace {

// Fits every program; those that know more replace it.
Status NobodyAt(const std::string& path, const char* what) {
  return Status(ErrorId::kNoServer, what)
      .Where(path)
      .Fix(
          "start one with `memserver run`, or name the directory of one that runs (--socket-dir, "
          "TIDEPOOL_SOCKET_DIR)");
}

}  // namespace

Result<UniqueFd> ConnectSocket(Clock* clock, const std::string& path, int64_t timeout_ns) {
  TP_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return SocketError("open", path);

  const int64_t end = clock->NowNs() + timeout_ns;
  while (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    // Also happens briefly while a server of a group restarts; a caller that waits for servers
    // waits for it.
    if (errno == EACCES) {
      return Status(ErrorId::kNoServer, "the memserver at this socket is not open to you")
          .Where(path)
          .Why(std::strerror(errno))
          .Fix(
              "ask an administrator to add you to the group of its users (usermod --append "
              "--groups tidepool NAME) and log in again, or "
              "start a memserver of your own with `memserver run`");
    }
    // A server may be listening.
    const bool shortage =
        (IsShortage(errno) || errno == ENFILE) && !TP_PLANTED("shm.shortage_is_nobody");
    if (!shortage && errno != EAGAIN && errno != EINTR) {
      const std::string why = std::strerror(errno);
      return NobodyAt(path, "no memserver answers at this socket").Why(why);
    }

    if (clock->NowNs() >= end && shortage) {
      return Status(ErrorId::kHostMemoryShort, "the system has no memory to connect to the socket")
          .Where(path)
          .Why(std::strerror(errno));
    }
    if (clock->NowNs() >= end) return NobodyAt(path, "memserver does not accept connections");
    clock->SleepNs(kNsPerMs);
  }
  return socket;
}

Result<UniqueFd> ListenSocket(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return SocketError("open", path);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return SocketError("bind", path);
  if (chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0) return SocketError("restrict", path);
  constexpr int kBacklog = 256;
  if (listen(socket.get(), kBacklog) != 0) return SocketError("listen on", path);
  return socket;
}

}  // namespace tidepool::shm

#include "memserver/control/descriptors/descriptor_lane.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "shm/fd_socket.h"

namespace tidepool::memserver {

namespace {

struct Received {
  ssize_t bytes = -1;  // as of recvmsg
  std::array<int, kLaneFdsMax> fds{-1, -1};
  uint32_t count = 0;  // of fds
  bool whole = true;   // nothing was cut off, and only descriptors came along
};

// A lane may wait until the system has memory again, while memserver may not; but it does not wait
// if the caller asked for an immediate answer.
bool WaitsOutShortage(int flags) {
  if (!shm::IsShortage(errno) || (flags & MSG_DONTWAIT) != 0) return false;
  poll(nullptr, 0, 1);
  return true;
}

// Offers room for exactly `fds_max` descriptors: CMSG_SPACE would admit one more.
Received Receive(int socket, std::span<std::byte> bytes, uint32_t fds_max, int flags) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kLaneFdsMax)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_LEN(sizeof(int) * std::min(fds_max, kLaneFdsMax));

  Received received;
  do {
    received.bytes = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  } while (received.bytes < 0 && (errno == EINTR || WaitsOutShortage(flags)));
  if (received.bytes < 0) return received;

  received.whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;

  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(&message, each)) {
    const bool rights = each->cmsg_level == SOL_SOCKET && each->cmsg_type == SCM_RIGHTS;
    received.whole = received.whole && rights;
    if (!rights) continue;

    const size_t count = std::min<size_t>((each->cmsg_len - CMSG_LEN(0)) / sizeof(int),
                                          kLaneFdsMax - received.count);
    std::memcpy(received.fds.data() + received.count, CMSG_DATA(each), count * sizeof(int));
    received.count += static_cast<uint32_t>(count);
  }
  return received;
}

void Send(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kLaneFdsMax)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;

  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }

  while (sendmsg(socket, &message, MSG_NOSIGNAL) < 0 && (errno == EINTR || WaitsOutShortage(0))) {
  }
}

// Checks a descriptor without asking its own file system. Memory made by a memserver is a memfd;
// GPU memory is a memfd, or a device or an anonymous inode of its driver. An O_PATH descriptor has
// nothing to write back when it is closed.
bool IsOfKind(int fd, LaneTask task) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return false;
  const bool names_a_place = (flags & O_PATH) != 0;
  if (task == LaneTask::kTakeDirectory) return names_a_place;
  if (names_a_place) return false;
  if (fcntl(fd, F_GET_SEALS) >= 0) return true;
  struct statx about {};
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &about) != 0) return false;
  const bool of_kernel = (about.stx_mode & S_IFMT) == 0;  // an anonymous inode, as of eventfd
  return S_ISCHR(about.stx_mode) || of_kernel;
}

LaneWord WordFor(const Received& packet, LaneTask task) {
  if (packet.bytes < 0)
    return errno == EAGAIN || shm::IsShortage(errno) ? LaneWord::kNone : LaneWord::kGone;
  if (!packet.whole) return LaneWord::kMalformed;
  if (packet.bytes == 0) return LaneWord::kGone;
  const auto last = packet.fds.begin() + packet.count;
  return std::all_of(packet.fds.begin(), last, [task](int fd) { return IsOfKind(fd, task); })
             ? LaneWord::kTaken
             : LaneWord::kRefused;
}

// Keeps each admitted O_PATH descriptor open until memserver has closed it, so that the last close
// is never memserver's.
class KeptPlaces {
 public:
  void Keep(uint64_t connection, int fd) {
    Place& place = places_[next_++ % places_.size()];
    if (place.fd >= 0) close(place.fd);
    place = {connection, fd};
  }
  void Release(uint64_t connection) {
    for (Place& place : places_) {
      if (place.fd < 0 || place.connection != connection) continue;
      close(place.fd);
      place.fd = -1;
    }
  }

 private:
  struct Place {
    uint64_t connection = 0;
    int fd = -1;
  };
  std::array<Place, kLaneDirectories> places_{};
  size_t next_ = 0;
};

struct AnswerBytes {
  LaneReply reply;
  std::array<std::byte, kLanePacketMax> packet;
};

void Take(int channel, const LaneAsk& ask, int client, KeptPlaces* places) {
  AnswerBytes answer{};
  const Received packet = Receive(client, answer.packet, ask.fds_max, MSG_DONTWAIT);
  answer.reply = {ask.connection, WordFor(packet, ask.task), 0};  // reads errno
  close(client);
  const std::span<const int> fds = std::span(packet.fds).first(packet.count);
  const bool taken = answer.reply.word == LaneWord::kTaken;
  const size_t bytes = sizeof(LaneReply) + (taken ? static_cast<size_t>(packet.bytes) : 0);
  Send(channel, std::as_bytes(std::span(&answer, 1)).first(bytes),
       taken ? fds : std::span<const int>());

  for (const int fd : fds) {
    if (taken && ask.task == LaneTask::kTakeDirectory) {
      places->Keep(ask.connection, fd);
    } else {
      close(fd);
    }
  }
  if (answer.reply.word != LaneWord::kMalformed && answer.reply.word != LaneWord::kRefused) return;
  const LaneReply closed{ask.connection, LaneWord::kClosed, 0};
  Send(channel, std::as_bytes(std::span(&closed, 1)), {});
}

[[noreturn]] void End() {
  _exit(0);  // tidy: allow exit, because a forked process has no main to return to
}

[[noreturn]] void ServeLane(int channel) {
  prctl(PR_SET_NAME, "tp-lane");
  KeptPlaces places;
  for (;;) {
    LaneAsk ask;
    const Received asked = Receive(channel, std::as_writable_bytes(std::span(&ask, 1)), 1, 0);
    if (asked.bytes != static_cast<ssize_t>(sizeof ask)) End();

    if (ask.task == LaneTask::kRelease) {
      places.Release(ask.connection);
    } else if (asked.count == 1) {
      Take(channel, ask, asked.fds[0], &places);
    }
  }
}

// Descriptors that clients send must never get the numbers of the standard streams.
void KeepOnly(int channel) {
  const auto kept = static_cast<unsigned>(channel);
  if (kept > 0) close_range(0, kept - 1, 0);
  close_range(kept + 1, ~0U, 0);
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) End();
  }
}

[[noreturn]] void MakeLanes(int channel) {
  std::signal(SIGCHLD, SIG_IGN);  // lanes leave no zombies
  for (;;) {
    std::byte word{};
    const Received asked = Receive(channel, std::span(&word, 1), 1, 0);
    if (asked.bytes <= 0) End();
    if (asked.count != 1) continue;

    const int lane = asked.fds[0];
    if (fork() == 0) {
      close(channel);
      ServeLane(lane);
    }
    close(lane);
  }
}

}  // namespace

int ForkLaneMaker(int channel, std::span<char> title) {
  constexpr char kTitle[] = "tidepool: takes descriptors";
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_NAME, "tp-door");
  std::fill(title.begin(), title.end(), '\0');
  std::copy_n(kTitle, std::min(title.size(), sizeof kTitle - 1), title.begin());
  KeepOnly(channel);
  MakeLanes(channel);
}

}  // namespace tidepool::memserver

#include "base/system/nonblocking_stderr.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/planted.h"

namespace tidepool {

// O_NONBLOCK belongs to the open file, which other processes share. A pipe or a terminal can be
// opened again; a file cannot, since it would get another file offset, but it has no reader to wait
// for.
NonblockingStderr::NonblockingStderr() {
  struct stat about {};
  if (fstat(STDERR_FILENO, &about) != 0) return;
  if (S_ISSOCK(about.st_mode)) {
    kind_ = Kind::kSocket;
  } else if (S_ISREG(about.st_mode)) {
    kind_ = Kind::kFile;
  } else {
    own_ = UniqueFd(open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (own_.valid()) kind_ = Kind::kOwn;
  }
}

bool NonblockingStderr::Write(std::string_view line) {
  std::string bytes(line.substr(0, PIPE_BUF - 1));
  bytes += '\n';
  const bool written = WriteOnce(bytes);
  dropped_ += written ? 0 : 1;
  return written;
}

bool NonblockingStderr::WriteOnce(std::string_view bytes) const {
  const auto whole = [&bytes](ssize_t count) {
    return count == static_cast<ssize_t>(bytes.size());
  };
  if (TP_PLANTED("keeper.waits_for_its_log"))
    return whole(write(STDERR_FILENO, bytes.data(), bytes.size()));
  if (kind_ == Kind::kOwn) return whole(write(own_.get(), bytes.data(), bytes.size()));
  if (kind_ == Kind::kSocket)
    return whole(send(STDERR_FILENO, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
  if (kind_ == Kind::kFile) return whole(write(STDERR_FILENO, bytes.data(), bytes.size()));

  // Another user's pipe, which cannot be reopened. On kernels without a non-blocking write to it,
  // its room is checked first.
  pollfd entry{STDERR_FILENO, POLLOUT, 0};
  if (poll(&entry, 1, 0) != 1 || (entry.revents & POLLOUT) == 0) return false;
  const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  const ssize_t count = pwritev2(STDERR_FILENO, &part, 1, -1, RWF_NOWAIT);
  if (count < 0 && errno == EOPNOTSUPP)
    return whole(write(STDERR_FILENO, bytes.data(), bytes.size()));
  return whole(count);
}

}  // namespace tidepool

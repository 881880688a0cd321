// UniqueFd owns one file descriptor and closes it. Move only; one thread per object.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace tidepool {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  // The descriptor, still owned by this object; -1 if there is none.
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Passes the descriptor to the caller without closing it.
  int Release() { return std::exchange(fd_, -1); }
  // Closes the descriptor now.
  void Reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

// Invalid if no descriptor is left; errno says why.
inline UniqueFd Duplicate(int fd) {
  return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

}  // namespace tidepool

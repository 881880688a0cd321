// SocketDirectory: the directory of memserver's sockets, owned by one server at a time.
//
// One thread. Ownership is an flock on memserver.lock, which the kernel drops however the owner
// dies. So sockets left by a dead server are recognised reliably, and removed. The directory is
// made with mode 0700 and must belong to this user; in service mode a group may enter it once the
// sockets exist.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/control/access.h"

namespace tidepool::memserver {

class SocketDirectory {
 public:
  // Waits briefly, by `clock`, for an owner that is ending. Errors: kSocketInUse (names the pid of
  // the server that owns it), kSocketFailed.
  static Result<std::unique_ptr<SocketDirectory>> Claim(const std::string& path, Clock* clock);
  // Removes the sockets and the lock file.
  ~SocketDirectory();
  SocketDirectory(const SocketDirectory&) = delete;
  SocketDirectory& operator=(const SocketDirectory&) = delete;

  // Admits the users that `access` names: sets modes and groups of the sockets, then of the
  // directory. Errors: kSocketFailed.
  Status Open(const Access& access) const;
  const std::string& path() const { return path_; }

 private:
  SocketDirectory(std::string path, UniqueFd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  void RemoveSockets() const;
  std::string path_;
  UniqueFd lock_;
};

}  // namespace tidepool::memserver

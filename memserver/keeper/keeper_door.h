// KeeperDoor: the listening socket of a keeper, and the file by which a memserver finds it.
//
// The keeper's one thread. It owns the descriptor; the file is its own only until another process
// replaces it.
#pragma once

#include <sys/stat.h>

#include <string>

#include "base/unique_fd.h"

namespace tidepool::memserver {

class KeeperDoor {
 public:
  explicit KeeperDoor(int listen_fd) : listener_(listen_fd) {}

  // Makes accept non-blocking. False, after an error message: cannot listen.
  bool Open();
  int fd() const { return listener_.get(); }
  const std::string& path() const { return path_; }
  // True if a client that connects to the path reaches this socket.
  bool CanBeFound() const;
  void Close() const;

 private:
  const UniqueFd listener_;
  std::string path_;
  struct stat file_ {};  // to tell it from a later file at the same path
};

}  // namespace tidepool::memserver

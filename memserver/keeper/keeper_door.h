// KeeperDoor: the socket at which a keeper listens, and the file by which a memserver finds it.
//
// The keeper's one thread. It owns the descriptor; the file is its own only as long as nobody has
// put another one in its place.
#pragma once

#include <sys/stat.h>

#include <string>

#include "base/unique_fd.h"

namespace tidepool::memserver {

class KeeperDoor {
 public:
  explicit KeeperDoor(int listen_fd) : listener_(listen_fd) {}

  // Never waits in accept from here on. False, and it has said why: there is nothing to listen on.
  bool Open();
  int fd() const { return listener_.get(); }
  const std::string& path() const { return path_; }
  // A client that connects to the path reaches this socket.
  bool CanBeFound() const;
  void Close() const;

 private:
  const UniqueFd listener_;
  std::string path_;
  struct stat file_ {};  // to tell it from a later one at the same path
};

}  // namespace tidepool::memserver

#include "memserver/keeper/keeper_door.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

namespace tidepool::memserver {

bool KeeperDoor::Open() {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      address.sun_family != AF_UNIX) {
    LogError("the inherited descriptor is no listening socket", {{"fd", listener_.get()}});
    return false;
  }

  path_ = address.sun_path;
  if (stat(path_.c_str(), &file_) != 0) {
    LogError(
        "the socket's file is gone: the memserver that started this keeper has not waited for it",
        {{"socket", path_}});
    return false;
  }
  return fcntl(listener_.get(), F_SETFL, O_NONBLOCK) == 0;
}

bool KeeperDoor::CanBeFound() const {
  struct stat now {};
  return stat(path_.c_str(), &now) == 0 && now.st_ino == file_.st_ino &&
         now.st_ctim.tv_nsec == file_.st_ctim.tv_nsec;
}

void KeeperDoor::Close() const {
  if (CanBeFound()) unlink(path_.c_str());
}

}  // namespace tidepool::memserver

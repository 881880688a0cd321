#include "shm/socket_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

namespace tidepool::shm {

namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool May(const std::string& path, int mode) {
  return faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0;
}

// True for a directory of this user with a data socket. A directory that another user made in /tmp
// is not inspected.
bool ServesIn(const std::string& socket_dir) {
  struct stat about {};
  return stat(socket_dir.c_str(), &about) == 0 && about.st_uid == geteuid() &&
         May(DataSocketPath(socket_dir), F_OK);
}

}  // namespace

std::string DefaultSocketDir(const std::string& system_dir) {
  if (const std::string named = Environment("TIDEPOOL_SOCKET_DIR"); !named.empty()) return named;
  if (May(system_dir, W_OK | X_OK)) return system_dir;
  if (const std::string runtime = Environment("XDG_RUNTIME_DIR"); !runtime.empty())
    return runtime + "/tidepool";
  return "/tmp/tidepool-" + std::to_string(getuid());
}

std::string DefaultClientDir(const std::string& system_dir) {
  std::string own = DefaultSocketDir(system_dir);
  const bool is_named = !Environment("TIDEPOOL_SOCKET_DIR").empty();
  // A service that is not open to this user is found too: its refusal is more informative than an
  // absence.
  return is_named || ServesIn(own) || !May(system_dir, F_OK) ? own : system_dir;
}

std::string DataSocketPath(const std::string& socket_dir) {
  return socket_dir + "/data.sock";
}
std::string AdminSocketPath(const std::string& socket_dir) {
  return socket_dir + "/admin.sock";
}
std::string KeeperSocketPath(const std::string& socket_dir) {
  return socket_dir + "/keeper.sock";
}
std::string LockFilePath(const std::string& socket_dir) {
  return socket_dir + "/memserver.lock";
}
std::string RatesPath(const std::string& socket_dir) {
  return socket_dir + "/rates.json";
}

Status CheckSocketDir(const std::string& socket_dir) {
  const size_t length_max = sizeof(sockaddr_un{}.sun_path) - 1;
  const std::string longest = KeeperSocketPath(socket_dir);
  if (longest.size() <= length_max) return Status();
  return Status(ErrorId::kSocketFailed, "the socket path has " + std::to_string(longest.size()) +
                                            " characters; a Unix socket allows " +
                                            std::to_string(length_max))
      .Where(longest)
      .Fix("give a shorter --socket-dir");
}

}  // namespace tidepool::shm

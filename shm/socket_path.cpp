#include "shm/socket_path.h"

#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

namespace tidepool::shm {

namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string DefaultSocketDir() {
  if (const std::string named = Environment("TIDEPOOL_SOCKET_DIR"); !named.empty()) return named;
  if (access("/run/tidepool", W_OK | X_OK) == 0) return "/run/tidepool";
  if (const std::string runtime = Environment("XDG_RUNTIME_DIR"); !runtime.empty()) return runtime + "/tidepool";
  return "/tmp/tidepool-" + std::to_string(getuid());
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

Status CheckSocketDir(const std::string& socket_dir) {
  const size_t length_max = sizeof(sockaddr_un{}.sun_path) - 1;
  const std::string longest = KeeperSocketPath(socket_dir);
  if (longest.size() <= length_max) return Status();
  return Status(ErrorId::kSocketFailed,
                "the socket path has " + std::to_string(longest.size()) + " characters; a Unix socket allows " + std::to_string(length_max))
      .Where(longest)
      .Fix("give a shorter --socket-dir");
}

}  // namespace tidepool::shm

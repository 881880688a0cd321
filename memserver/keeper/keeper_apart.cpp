#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "memserver/keeper/keeper.h"
#include "shm/fd_socket.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {

namespace {

constexpr int64_t kProbeNs = kNsPerSecond;

// Listens on the directory's keeper socket, replacing a stale one.
Result<UniqueFd> ListenIn(const std::string& socket_dir, Clock* clock) {
  TP_RETURN_IF_ERROR(shm::CheckSocketDir(socket_dir));
  if (mkdir(socket_dir.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return Status(ErrorId::kSocketFailed, "cannot make the socket directory")
        .Where(socket_dir)
        .Why(std::strerror(errno));
  }

  const std::string path = shm::KeeperSocketPath(socket_dir);
  const auto other = shm::ConnectSocket(clock, path, kProbeNs);
  if (other.ok()) {
    return Status(ErrorId::kSocketInUse, "a keeper listens there already")
        .Where(path)
        .Fix("end that one, or name another directory with --socket-dir");
  }
  if (other.status().id() != ErrorId::kNoServer) return other.status();

  unlink(path.c_str());
  return shm::ListenSocket(path);
}

}  // namespace

Result<int> RunKeeperApart(const ApartKeeperOptions& options, Clock* clock) {
  TP_ASSIGN_OR_RETURN(UniqueFd listener, ListenIn(options.socket_dir, clock));
  KeeperOptions keeper;
  keeper.listen_fd = listener.Release();
  keeper.lease_ms = options.lease_ms;
  keeper.no_respawn = true;
  keeper.stays = true;
  keeper.log_level = options.log_level;
  keeper.log_format = options.log_format;
  return RunKeeper(keeper);
}

}  // namespace tidepool::memserver

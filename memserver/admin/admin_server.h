// AdminServer: HTTP/1.1 on a Unix socket, by which people and tools look into the daemon
// (docs/admin_api.md).
//
// Start and the destructor belong to the thread that owns the daemon; everything between runs on
// one thread of its own, so a slow or hostile reader delays other readers at most, never the
// control sockets or the serve loop.
// Who may ask, and with which rights: memserver/control/access.h. The socket file is made with mode
// 0600; each peer is checked once more. The one door to Boost.Beast in the daemon is
// admin_server.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/admin/admin_api.h"

namespace tidepool::memserver {

// What one peer may cost. Beyond these the answer is 413, 431 or 503, or the connection is closed.
struct AdminLimits {
  uint32_t connections_max = 64;
  uint32_t user_connections_max = 16;  // of one user below the level of an admin
  uint32_t header_bytes_max = 8 * 1024;
  uint64_t body_bytes_max = 16 * 1024;  // changes bring a small one
  // From the end of the last answer to the end of the next request.
  int64_t request_timeout_ns = 10 * kNsPerSecond;
  int64_t answer_timeout_ns = 10 * kNsPerSecond;  // for the reader to take an answer
  // Between two looks at what was logged, for a reader that follows.
  int64_t follow_pause_ns = kNsPerSecond / 4;
  // Between two tries to listen on a port of metrics that another process has.
  int64_t metrics_pause_ns = kNsPerSecond;
};

// Where the server listens.
struct AdminDoors {
  // A file of that name is replaced, so the caller must hold the socket directory's lock.
  std::string socket_path;
  Access access = PrivateAccess();
  // An address of the loopback (base/system/loopback.h) that answers GET /metrics for every user of
  // this machine, and nothing else; empty: none. While another process has the port, the server
  // tries again; its start does not fail.
  std::string metrics_listen = {};
};

class AdminServer {
 public:
  // `api` must outlive the server and is used by its thread only. Errors: kSocketFailed.
  static Result<std::unique_ptr<AdminServer>> Start(AdminDoors doors, AdminApi* api,
                                                    const AdminLimits& limits = {});
  // Closes all connections, ends the thread, removes the socket file.
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

 private:
  class Engine;  // everything of Asio and Beast
  explicit AdminServer(std::unique_ptr<Engine> engine);
  std::unique_ptr<Engine> engine_;
};

}  // namespace tidepool::memserver

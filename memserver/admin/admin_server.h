// AdminServer: HTTP/1.1 on a Unix socket, through which people and tools inspect the daemon
// (docs/admin_api.md).
//
// Start and the destructor belong to the thread that owns the daemon. Everything in between runs on
// a thread of its own, so that a slow or hostile reader delays at most other readers, never the
// control sockets or the serve loop. memserver/control/access.h defines who may ask, and with which
// rights. The socket file is made with mode 0600, and each peer is checked again. admin_server.cpp
// is the daemon's one door to Boost.Beast.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/admin/admin_api.h"

namespace tidepool::memserver {

// Bounds of what one peer may use. Beyond them the answer is 413, 431 or 503, or the connection is
// closed.
struct AdminLimits {
  uint32_t connections_max = 64;
  uint32_t user_connections_max = 16;  // of one user below the level of an admin
  uint32_t header_bytes_max = 8 * 1024;
  uint64_t body_bytes_max = 16 * 1024;  // bodies of changes are small
  // From the end of the last answer to the end of the next request.
  int64_t request_timeout_ns = 10 * kNsPerSecond;
  int64_t answer_timeout_ns = 10 * kNsPerSecond;  // for the reader to take an answer
  // Pause between two looks at the log, for a reader that follows it.
  int64_t follow_pause_ns = kNsPerSecond / 4;
  // Pause between two tries to listen on a metrics port that another process has.
  int64_t metrics_pause_ns = kNsPerSecond;
};

// Where the server listens.
struct AdminDoors {
  // A file of that name is replaced, so the caller must hold the socket directory's lock.
  std::string socket_path;
  Access access = PrivateAccess();
  // A loopback address (base/system/loopback.h) that answers only GET /metrics, for every user of
  // this machine; empty: none. While another process has the port, the server tries again; its
  // start does not fail.
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
  class Engine;  // hides Asio and Beast
  explicit AdminServer(std::unique_ptr<Engine> engine);
  std::unique_ptr<Engine> engine_;
};

}  // namespace tidepool::memserver

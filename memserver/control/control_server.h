// ControlServer: memserver's data socket: accepts trainers, speaks their control frames, informs
// the serve loop, and detects deaths.
//
// Run() is the control thread, which owns everything here. It shares only two queues with the serve
// loop (mailbox.h) and never blocks on a client: a client that does not read, does not greet in
// time, or sends what is not in the protocol loses its connection, never the server. A death is
// detected by the socket's end and by the pidfd of the process that connected; a forked child
// cannot hide the latter.
#pragma once

#include <memory>

#include "base/status.h"
#include "memserver/control/control_options.h"

namespace tidepool::memserver {

struct ControlReactor;  // Boost.Asio, behind its one door

class ControlServer {
 public:
  // Listens on data.sock. Errors: kSocketFailed.
  static Result<std::unique_ptr<ControlServer>> Open(const ControlOptions& options,
                                                     const ControlNeighbours& neighbours);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Serves until the loop has answered Stopped.
  void Run();

 private:
  explicit ControlServer(std::unique_ptr<ControlReactor> reactor);
  const std::unique_ptr<ControlReactor> reactor_;
};

}  // namespace tidepool::memserver

// ControlServer: the data socket of memserver: accepts trainers, speaks their control frames, tells
// the serve loop, and notices deaths.
//
// Run() is the control thread, which owns all of it. It meets the serve loop in two queues only
// (mailbox.h) and waits for nobody: a client that does not read, does not greet in time, or sends
// what is not in the protocol loses its connection, never the server.
// A death is noticed by the socket's end and by the pidfd of the process that connected; the second
// cannot be hidden by forked children.
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

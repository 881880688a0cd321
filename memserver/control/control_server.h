// ControlServer: the data socket of memserver: accepts trainers, speaks their control frames, tells
// the serve loop, and notices deaths.
//
// Run() is the control thread, which owns all of it. It meets the serve loop in two queues only
// (mailbox.h) and waits for nobody: a client that does not read, does not greet in time, or sends
// what is not in the protocol loses its connection, never the server.
// A death is noticed by the socket's end and by the pidfd of the process that connected; the second
// cannot be hidden by forked children.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/event_queue.h"
#include "base/status.h"
#include "device/device.h"
#include "memserver/control/access.h"
#include "memserver/control/mailbox.h"
#include "memserver/control/bounds/user_pace.h"
#include "memserver/residency/snapshot.h"

namespace tidepool::memserver {

// How clients are served.
struct ControlOptions {
  std::string socket_dir;  // already claimed (SocketDirectory)
  Access access = PrivateAccess();
  // Each holds 2 descriptors, later 3 more in the loop.
  uint32_t connections_max = 512;
  uint32_t user_connections_max = 512;              // of one user; root and the owner may have all
  int64_t greeting_timeout_ns = 10 * kNsPerSecond;  // from accept to a complete job description
  UserPaceLimits user_pace = {};                    // of the control thread's work for one user
};

// The neighbours; they outlive the server.
struct ControlNeighbours {
  device::Device* device = nullptr;  // makes rCache memory
  EventQueue<ControlEvent>* to_loop = nullptr;
  EventQueue<ControlReply>* from_loop = nullptr;
  // What the loop answered to SnapshotWanted.
  EventQueue<std::shared_ptr<const Snapshot>>* snapshots = nullptr;
  // Opens the GPUs whose memory ranks bring; null: none can be opened.
  GpuTable* gpus = nullptr;
};

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
  struct Reactor;  // Boost.Asio, behind its one door
  explicit ControlServer(std::unique_ptr<Reactor> reactor);
  std::unique_ptr<Reactor> reactor_;
};

}  // namespace tidepool::memserver

// ControlOptions, ControlNeighbours: how memserver's data socket is served, and the dependencies of
// its server.
//
// Plain values; read by the control thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/event_queue.h"
#include "device/device.h"
#include "memserver/control/access.h"
#include "memserver/control/bounds/user_pace.h"
#include "memserver/control/mailbox.h"
#include "memserver/residency/snapshot.h"

namespace tidepool::memserver {

// How clients are served.
struct ControlOptions {
  std::string socket_dir;  // already claimed (SocketDirectory)
  Access access = PrivateAccess();
  // Each holds 2 descriptors, and later 3 more in the loop.
  uint32_t connections_max = 512;
  uint32_t user_connections_max = 512;              // of one user; root and the owner have no limit
  int64_t greeting_timeout_ns = 10 * kNsPerSecond;  // from accept to a complete job description
  UserPaceLimits user_pace = {};                    // bounds the control thread's work for one user
};

// The server's dependencies; all outlive it.
struct ControlNeighbours {
  Clock* clock = nullptr;
  device::Device* device = nullptr;  // makes rCache memory
  EventQueue<ControlEvent>* to_loop = nullptr;
  EventQueue<ControlReply>* from_loop = nullptr;
  // The loop's answers to SnapshotWanted.
  EventQueue<std::shared_ptr<const Snapshot>>* snapshots = nullptr;
  // Opens the GPUs whose memory ranks bring; null: none can be opened.
  GpuTable* gpus = nullptr;
};

}  // namespace tidepool::memserver

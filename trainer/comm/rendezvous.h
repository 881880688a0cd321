// Rendezvous: where the ranks of a run meet, as torchrun and `trainer launch` tell it in the environment.
//
// Any thread; a value type. Units: milliseconds. Invariants after RendezvousFromEnv: rank < world, world >= 1, port > 0 when world > 1.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tidepool::trainer {

inline constexpr int64_t kCollectiveTimeoutMs = 5 * 60 * 1000;

struct Rendezvous {
  uint32_t rank = 0, world = 1;              // of the whole run
  uint32_t local_rank = 0, local_world = 1;  // of this node
  std::string host = "127.0.0.1";            // of rank 0's store
  uint16_t port = 0;                         // 0: the master picks a free one (tests)
  bool serves_store = true;                  // this process opens the store's port (rank 0, unless torchrun's agent has done so)
  std::string prefix{};                      // keeps a restarted run apart from its former attempt on the same store
  int64_t timeout_ms = kCollectiveTimeoutMs;
};

// From RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE and
// TORCHELASTIC_RESTART_COUNT. Without RANK and WORLD_SIZE: one rank alone. Errors: kUsageError (a variable is missing or not a number).
Result<Rendezvous> RendezvousFromEnv();

// "localhost", 127.x.x.x and "::1": every rank is on this machine.
bool IsLoopback(const std::string& host);

}  // namespace tidepool::trainer

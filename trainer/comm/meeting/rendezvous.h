// Rendezvous: where the ranks of a run meet, as torchrun and `trainer launch` set it in the
// environment.
//
// Any thread; a value type. Units: milliseconds. Invariants after RendezvousFromEnv: rank < world,
// world >= 1, port > 0 when world > 1.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/formats/content_hash.h"
#include "base/status.h"
#include "trainer/comm/rank_standing.h"

namespace tidepool::trainer {

inline constexpr int64_t kCollectiveTimeoutMs = 5 * 60 * 1000;

struct Rendezvous {
  uint32_t rank = 0, world = 1;  // of the whole run
  // Measures all limits below; outlives meetings and their groups. Required.
  Clock* clock = nullptr;
  uint32_t local_rank = 0, local_world = 1;  // of this node
  std::string host = "127.0.0.1";            // of rank 0's store
  uint16_t port = 0;                         // 0: the master picks a free one (tests)
  // Whether this process opens the store's port (rank 0, unless torchrun's agent has done so).
  bool serves_store = true;
  // Separates a restarted run from its previous attempt on the same store.
  std::string prefix{};
  // All ranks run here: they meet over Unix sockets (trainer/comm/meeting/local_meeting.h).
  bool one_machine = false;
  // Hash that distinguishes runs alive at the same time; equal on all ranks.
  ContentHash run{};
  // Hash of the run's specification; ranks that differ refuse each other by name.
  ContentHash spec{};
  int64_t timeout_ms = kCollectiveTimeoutMs;
  // Limit on waiting for another rank, from its last sign of life
  // (trainer/comm/meeting/patience.h); 0: timeout_ms.
  int64_t gather_timeout_ms = 0;
  // Limit on connecting ranks that have all gathered. One of them may die just then, and the others
  // give up: after this time without its address, or five times as long without its connection
  // (Gloo's factor). A run whose ranks try again sets a short time.
  int64_t mesh_timeout_ms = 30'000;
  // Called four times a second during an operation of a group; an error says that the operation
  // cannot succeed. Gloo notices most dead peers by itself, but not all. If Gloo does not end the
  // operation within two seconds, `stuck` is called with the error and should not return: an
  // operation in flight cannot be cancelled, because it may still write to its buffers.
  std::function<Status()> doomed{};
  std::function<void(const Status&)> stuck{};
  // Called about twenty times a second while waiting for other ranks; an error ends the wait.
  std::function<Status()> interrupted{};
  // Called as often, for each missing rank; null: nothing more is known of it.
  std::function<RankStanding(uint32_t rank)> standing{};
  // Prints a line for the user, once a minute while waiting for others. Null: none.
  std::function<void(const std::string& line)> say{};

  // How long ranks have to gather.
  int64_t GatherLimitMs() const { return gather_timeout_ms > 0 ? gather_timeout_ms : timeout_ms; }
};

// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
// TORCHELASTIC_USE_AGENT_STORE and TORCHELASTIC_RESTART_COUNT. Without RANK and WORLD_SIZE: a
// single rank. Errors: kUsageError (a variable is missing or not a number).
Result<Rendezvous> RendezvousFromEnv();

// True for "localhost", 127.x.x.x and "::1": every rank is on this machine.
bool IsLoopback(const std::string& host);

}  // namespace tidepool::trainer

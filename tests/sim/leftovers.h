// Leftovers: looks for what dead ranks have left behind in the simulated server, while it serves
// on.
//
// One thread, between turns; one object for the life of a world. A broken invariant stops the
// process. After each turn:
//  1. a slot of a rank that is gone goes within some turns after it was told so; with it go its
//     session, rings, rCache and stream;
//  2. nothing else names a rank without a session: no copy is counted as a chunk's reader, no save
//     waits, no rCache is said to hold something, no identity is kept (but of ranks that the server
//     before this one knew, and that are awaited);
//  3. bytes of the pool belong to jobs that have ranks, or a lease that is not over, or are at the
//     workers, at a drive or at the checkpoint thread; any other job goes within some turns.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "tests/fakes/serve_world.h"
#include "tests/fakes/slow_device.h"

namespace tidepool::memserver {

class Leftovers {
 public:
  // Turns that the server may take for what it does a bit at a time, and may put off where
  // TP_BUGGIFY says so.
  static constexpr uint64_t kTurnsMax = 200;

  // Another server has begun, with what one before it left, or with nothing.
  void BeginServer(const ServeWorld& world);

  struct Outside {  // of the server
    std::function<bool(ConnectionId)> lives;
    const SlowDevice* device = nullptr;
    size_t saves = 0;  // at the checkpoint thread
    int64_t lease_ns = 0;
  };
  // After a turn.
  void CheckTurn(ServeWorld* world, const Outside& outside);
  // Slots of ranks that are gone, seen to be given back.
  uint64_t cleared() const { return cleared_; }

 private:
  void CheckSlots(const Tables& tables, const Outside& outside);
  void CheckJob(const Job& job, const ServeWorld& world);
  static void CheckReach(const Job& job);
  void CheckIdentities(const Job& job);
  void CheckOwner(const Job& job, ServeWorld* world, int64_t lease_ns);

  uint64_t turn_ = 0;
  uint64_t cleared_ = 0;
  std::vector<ConnectionId> slots_;                      // after the turn before
  std::map<ConnectionId, uint64_t> dead_slots_;          // the turn in which each was seen first
  std::map<JobId, uint64_t> unused_jobs_;                // likewise
  std::set<std::tuple<JobId, Rank, uint64_t>> awaited_;  // with the nonce of their incarnation
};

}  // namespace tidepool::memserver

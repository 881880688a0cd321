// SimWorld: one seed's world: the real serve loop, and simulated jobs, ranks, copies, workers, checkpoint thread and clock around it.
//
// One thread; everything that happens is chosen by the seed, so a seed repeats exactly. Faults that it makes: ranks killed at any point
// (copies in flight, gradients half in, step sealed or not), ranks that leave, jobs refused for lack of room, leases that end, gradients
// that are not finite, copies and workers that finish in any order, saves that take long.
// After every turn the invariants are checked; a broken one stops the process with its text (see Check... in sim_world.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/slow_device.h"
#include "tests/sim/sim_rank.h"

namespace tidepool::memserver {

struct SimReport {
  uint64_t events = 0;
  uint64_t hash = 0;  // of all events: equal for two runs of one seed
  uint64_t steps_sealed = 0, steps_skipped = 0, deaths = 0, rejoins = 0, saves = 0, refusals = 0;
};

class SimWorld {
 public:
  // verbose: every event on stdout.
  SimWorld(uint64_t seed, bool verbose);
  // `ticks` of chaos, then each job is brought to life once more, trains two steps, and leaves; at the end everything must be back.
  SimReport Run(uint32_t ticks);

 private:
  struct Actor {  // a job and its ranks
    std::unique_ptr<SimJob> job;
    std::vector<std::unique_ptr<SimRank>> ranks;
    JobId server_job = 0;  // the server's number for it; 0: none seen
  };
  struct RunningSave {
    SaveRequest request;
    uint64_t hash = 0;  // of the planes when it began
  };

  void Tick(bool faults);
  void Turn();
  void RouteReplies();
  void TakeSaves();
  void EndSave(size_t index);
  void MoveSomething();
  void PokeRank(bool faults);
  void Fault(Actor* actor, SimRank* rank);
  void FollowJobs();
  void CheckPool() const;
  void CheckPlanes() const;
  void Heal(Actor* actor);
  void KillAll();
  void Drain();
  SimRank* FindRank(ConnectionId connection, Actor** owner);
  void Note(const std::string& event);

  SplitMix64 random_;
  const bool verbose_;
  SlowDevice device_;
  std::vector<Actor> actors_;
  std::unique_ptr<ServeWorld> world_;
  std::vector<RunningSave> saves_;
  SimReport report_;
};

// Runs one seed from nothing to nothing; also checks that no descriptor is left.
SimReport RunSeed(uint64_t seed, uint32_t ticks, bool verbose);

}  // namespace tidepool::memserver

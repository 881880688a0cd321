// SimWorld: one seed's world: the real serve loop, recovery included, and simulated jobs, ranks,
// copies, workers, checkpoint thread, keeper and clock around it.
//
// One thread; everything that happens is chosen by the seed, so a seed repeats exactly. FaultPlan
// says which faults it makes; TP_BUGGIFY forces rare paths of the production code. A broken
// invariant (invariants.h) stops the process with its text. Checked after every turn: bytes, places
// in the pool, and the versions of jobs and chunks. Checked after every turn in which a job came,
// went, was sealed, published a chunk or began another attempt, after every recovery, and now and
// then: the index and every byte of every plane as well. That nothing of dead ranks is left is
// checked after every turn (leftovers.h), and at the end, when all have gone; that nobody waits for
// nothing, after every turn too (wake_checks.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/slow_device.h"
#include "tests/sim/fault_plan.h"
#include "tests/sim/leftovers.h"
#include "tests/sim/mortal_server.h"
#include "tests/sim/sim_rank.h"
#include "tests/sim/wake_checks.h"

namespace tidepool::memserver {

struct SimReport {
  // Number of things that happened: turns that did something, copies moved, pieces of work,
  // messages, actions of ranks, faults.
  uint64_t events = 0;
  uint64_t hash = 0;  // of all events: equal for two runs of one seed
  uint64_t steps_sealed = 0, steps_skipped = 0;
  uint64_t pipelined_steps = 0;  // of steps_sealed
  uint64_t rank_deaths = 0, rejoins = 0, comebacks = 0, saves = 0, refusals = 0;
  uint64_t server_deaths = 0, deaths_in_recovery = 0, hand_overs = 0;
  // Ranks whose job came again while it was still being removed.
  uint64_t waits_for_itself = 0;
  // Server deaths with nobody to hold the states.
  uint64_t losses = 0;
  // Deaths of the keeper alone; losses while it was renewed; times that the server stood still.
  uint64_t keeper_deaths = 0, losses_in_renewal = 0, stalls = 0;
  // Slots of ranks that are gone, seen to be given back.
  uint64_t cleared_slots = 0;
  // Parked requests and waiting ranks, seen to wait for something.
  uint64_t waits_seen = 0;
  // Requests to simulated drives; faults that repetitions removed.
  uint64_t nvme_requests = 0, nvme_faults = 0;
  uint64_t abandoned = 0;  // staged pieces that wait for their answer alone, summed over turns
  // Deaths of the server at points of pieces.
  uint64_t nvme_deaths = 0;
  // Demotions by servers, counted before the servers ended.
  uint64_t demotions = 0, demotions_dropped = 0;
  uint64_t demotion_deaths = 0;  // deaths of the server at their points
  // Frozen chunks: parts that ranks got; uploads of wrong bytes.
  uint64_t frozen_fetched = 0, frozen_rejected = 0;
  uint64_t frozen_deaths = 0;  // deaths of the server at their points
  // Jobs set aside for servers that had not ended; writes of those servers' copies.
  uint64_t set_aside = 0, late_writes = 0;
  // Jobs whose record was damaged; refusals while memory was withheld for them.
  uint64_t damaged = 0, withheld = 0;
  uint64_t rare_paths = 0;                                 // TP_BUGGIFY that fired
  std::array<uint32_t, kServerPoints.size()> killed_at{};  // server deaths by point
  // Sums two seeds' reports; the hashes are mixed.
  void Add(const SimReport& other);
};

class SimWorld {
 public:
  // verbose: every event on stdout.
  SimWorld(uint64_t seed, bool verbose);
  ~SimWorld();
  // Makes chaos until `events` have happened; then brings each job to life once more, which trains
  // across a restart of the server and leaves; at the end everything must be back.
  SimReport Run(uint64_t events);

 private:
  struct Actor {  // a job and its ranks
    std::unique_ptr<SimJob> job;
    std::vector<std::unique_ptr<SimRank>> ranks;
    // The server's job, as last seen.
    bool there = false, ready = false;
    int64_t ranks_seen_ns = 0;  // when it last had ranks, or awaited them
    uint64_t seals = 0;
    uint64_t published = 0;     // the sum of its chunks' versions
    uint64_t said_goodbye = 0;  // by rank: this incarnation, or the one before
  };
  struct RunningSave {
    SaveRequest request;
    uint64_t hash = 0;  // of the planes when it began
  };

  void TakeTeam(uint64_t seed);
  void GiveDisks(uint64_t seed, WorldOptions* options);
  void MakeDemotionsLikely(WorldOptions* options);
  void ArmDisk(bool armed);
  void Tick(bool faults);
  void Turn();
  void AfterTurn();
  void RunWork();
  void MoveCopy();
  void PokeRank(bool faults);
  void MakeRankFault(Actor* actor, SimRank* rank);
  void MakeWorldFault();
  void ArmPoint();
  void TellOfDeaths();
  void CheckTold();

  void KillServer(const std::string& how);
  void NoteLateWrites();
  void WriteLate();
  void EndLingering();
  void DamageAJob();
  const Job* JobOf(const Actor& actor) const;
  void LoseKeeper();
  void RenewKeeper();
  void LetWorkersDie();
  void StartNextServer();
  void StartAfresh();
  void KillWithServer();
  void ChangePlaces();
  void BeginAnew();

  void Route(ControlReply reply);
  void RouteReplies();
  void On(const ReserveGranted& granted);
  void On(const AwaitRank& awaited);
  void On(const Refused& refused);
  void On(const Attached& attached);
  void On(const SessionOver& over);
  void On(const PeerGone& gone);
  void On(const SaveDone& done);
  template <typename Other>
  void On(const Other&) {}

  void TakeSaves();
  void EndSave(size_t index);
  // True when a job came, went, was sealed, or began another attempt at its step.
  bool FollowJobs();
  void CountThoseWhoComeAgain();
  void CheckVanished(Actor* actor);
  void CountDemotions();
  void CheckTurn();
  void CheckLeftovers();
  void CheckAll();

  void LetLeave(Actor* actor, SimRank* rank);
  void KillRanks();
  void Heal(Actor* actor);
  void TrainOn(Actor* actor, uint64_t steps);
  void Drain();
  uint64_t& SleepUntil(const Actor& actor, const SimRank& rank);
  SimRank* FindRank(ConnectionId connection, Actor** owner);
  bool Lives(uint64_t nonce) const;
  std::string NameOf(const Actor& actor, const SimRank& rank) const;
  void Note(const std::string& event);
  void Count(uint64_t what);

  SplitMix64 random_;
  const bool verbose_;
  const bool frozen_;     // jobs list frozen chunks
  const bool lingers_;    // every second job is as if on GPUs; killed servers do not end at once
  bool demotes_ = false;  // jobs have to give room to others
  const FaultPlan plan_;
  std::unique_ptr<device::CopyTeam> team_;  // makes the copies; null: one thread does
  SlowDevice device_;
  std::vector<Actor> actors_;
  bool rare_paths_armed_ = false;
  int64_t lease_ns_ = 0;
  static constexpr uint32_t kWorkers = 3;
  static constexpr uint64_t kStallTicksMax = 600;
  uint32_t dying_worker_ = kWorkers;  // worker in whose piece the server died; kWorkers: none
  bool chaos_is_over_ = false;
  bool handing_over_ = false;   // the server was told so
  uint64_t others_die_at_ = 0;  // tick; see ChangePlaces
  std::unique_ptr<MortalServer> server_;
  ServeWorld* world_ = nullptr;
  std::vector<RunningSave> saves_;
  struct LateWrite {                 // of a copy that the dead had begun
    uint64_t offset = 0, bytes = 0;  // in the pool
  };
  std::vector<LateWrite> late_;
  std::vector<uint64_t> damaged_;  // nonces of jobs whose record was damaged
  struct Watch {
    AwaitRank rank;
    bool blind = false;  // its process cannot be watched: only the lease tells
  };
  std::vector<Watch> watches_;
  struct ToldDeath {
    AwaitRank rank;
    uint64_t heard_by = 0;  // tick
  };
  std::vector<ToldDeath> told_;
  Leftovers leftovers_;
  WakeChecks wakes_;
  ConnectionId last_again_ = 0;  // the newest rank that was seen to wait for its former self
  uint64_t tick_ = 0;
  uint64_t server_asleep_until_ = 0, workers_asleep_until_ = 0, copies_asleep_until_ = 0;  // ticks
  // Tick at which the keeper is renewed; 0: a keeper holds everything.
  uint64_t keeper_renewed_at_ = 0;
  // By actor and rank.
  std::vector<std::vector<uint64_t>> ranks_asleep_until_;
  SimReport report_;
};

// Runs one seed from nothing to nothing; also checks that no descriptor is left.
SimReport RunSeed(uint64_t seed, uint64_t events, bool verbose);

}  // namespace tidepool::memserver

#include "tests/sim/sim_world.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/buggify.h"
#include "base/check.h"
#include "shm/spec/frozen.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/check_staging.h"
#include "tests/fakes/real_clock.h"
#include "tests/sim/invariants.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kTeamEvery = 8;
// So small that even the smallest shards are copied by several threads.
constexpr uint64_t kTeamPieceBytes = 256;
constexpr uint64_t kFnvBasis = 14695981039346656037ULL;
constexpr uint64_t kFnvPrime = 1099511628211ULL;
constexpr uint32_t kHealTicksMax = 200000;
constexpr int64_t kLongLeaseNs = 3600 * kNsPerSecond;
constexpr int64_t kShortLeaseNs = 2 * kNsPerSecond;

uint64_t HashBytes(uint64_t hash, const void* data, uint64_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (uint64_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * kFnvPrime;
  return hash;
}

uint64_t HashOf(const SaveRequest& request) {
  uint64_t hash = kFnvBasis;
  for (const SavedTensor& tensor : request.tensors) {
    if (tensor.read) continue;  // lies on NVMe, where CheckPlanes looks at it
    if (tensor.data != nullptr) hash = HashBytes(hash, tensor.data, tensor.count * sizeof(float));
    if (tensor.data == nullptr)
      hash =
          HashBytes(HashBytes(hash, tensor.high, tensor.count * 2), tensor.rest, tensor.count * 2);
  }
  return hash;
}

uint64_t OpenDescriptors() {
  return static_cast<uint64_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                             std::filesystem::directory_iterator()));
}

int64_t LeaseOf(const FaultPlan& plan, SplitMix64* random) {
  if (!plan.Has(Fault::kLeaseEnd)) return kLongLeaseNs;
  return random->Below(3) == 0 ? 0 : kShortLeaseNs;
}

}  // namespace

void SimReport::Add(const SimReport& other) {
  events += other.events;
  hash = (hash ^ other.hash) * kFnvPrime;
  steps_sealed += other.steps_sealed;
  pipelined_steps += other.pipelined_steps;
  steps_skipped += other.steps_skipped;
  rank_deaths += other.rank_deaths;
  rejoins += other.rejoins;
  comebacks += other.comebacks;
  saves += other.saves;
  refusals += other.refusals;
  waits_for_itself += other.waits_for_itself;
  server_deaths += other.server_deaths;
  losses += other.losses;
  keeper_deaths += other.keeper_deaths;
  losses_in_renewal += other.losses_in_renewal;
  stalls += other.stalls;
  deaths_in_recovery += other.deaths_in_recovery;
  hand_overs += other.hand_overs;
  cleared_slots += other.cleared_slots;
  waits_seen += other.waits_seen;
  nvme_requests += other.nvme_requests;
  abandoned += other.abandoned;
  nvme_faults += other.nvme_faults;
  nvme_deaths += other.nvme_deaths;
  demotions += other.demotions;
  demotions_dropped += other.demotions_dropped;
  demotion_deaths += other.demotion_deaths;
  frozen_fetched += other.frozen_fetched;
  frozen_rejected += other.frozen_rejected;
  frozen_deaths += other.frozen_deaths;
  set_aside += other.set_aside;
  late_writes += other.late_writes;
  damaged += other.damaged;
  withheld += other.withheld;
  rare_paths += other.rare_paths;
  for (size_t i = 0; i < killed_at.size(); ++i) killed_at[i] += other.killed_at[i];
}

SimWorld::SimWorld(uint64_t seed, bool verbose)
    : random_(seed),
      verbose_(verbose),
      frozen_(seed % 4 == 2),
      lingers_(seed % 6 == 2),
      plan_(&random_) {
  report_.hash = kFnvBasis;
  if (verbose_) std::printf("faults: %s\n", plan_.Text().c_str());
  if (seed % kTeamEvery == 1) TakeTeam(seed);
  uint64_t sum = 0, largest = 0;
  const uint64_t jobs = 1 + random_.Below(3);
  for (uint32_t i = 0; i < jobs; ++i) {
    actors_.emplace_back();
    actors_.back().job = std::make_unique<SimJob>(i + 1, plan_, frozen_, &random_);
    const uint64_t bytes = shm::StateBytesOf(actors_.back().job->spec()).total();
    sum += bytes;
    largest = std::max(largest, bytes);
  }
  lease_ns_ = LeaseOf(plan_, &random_);
  WorldOptions options;
  options.pool_bytes = plan_.Has(Fault::kTightPool) ? largest : sum;
  options.device = &device_;
  options.loop.times.lease_ns = lease_ns_;
  options.loop.run_inline_work = false;
  options.inline_workers = kWorkers;
  options.tunings = {{512, true}, {1024, true}, {0, true}};
  GiveDisks(seed, &options);
  if (frozen_)
    options.pool_bytes += SimJob::kFrozenContents * shm::FrozenExtentBytes(SimJob::kFrozenBytes);
  server_ = std::make_unique<MortalServer>(options);
  world_ = &server_->world();
  if (world_->has_tier()) ArmDisk(true);
  for (Actor& actor : actors_) {
    const uint32_t world = actor.job->spec().world;
    for (Rank rank = 0; rank < world; ++rank) {
      actor.ranks.push_back(std::make_unique<SimRank>(
          SimRank::Place{world_, actor.job.get(), &plan_, &random_}, rank));
    }
    ranks_asleep_until_.emplace_back(world, 0);
  }
  if (demotes_) BeginAnew();
  rare_paths_armed_ = random_.Below(4) != 0;
  if (rare_paths_armed_) ArmBuggify(random_.Next());
}

// A copy is whole when it returns, however many threads made it: a seed repeats exactly with them
// too.
void SimWorld::TakeTeam(uint64_t seed) {
  const auto helpers = static_cast<uint32_t>(1 + seed / kTeamEvery % 2);
  team_ = std::make_unique<device::CopyTeam>(
      RealClock(), helpers, 5'000, device::CopyTeam::Form{.piece_bytes = kTeamPieceBytes});
  device_.SetTeam(team_.get());
}

SimWorld::~SimWorld() {
  DisarmBuggify();
}

void SimWorld::Count(uint64_t what) {
  ++report_.events;
  report_.hash = (report_.hash ^ what) * kFnvPrime;
}

void SimWorld::Note(const std::string& event) {
  if (event.empty()) return;
  Count(HashBytes(kFnvBasis, event.data(), event.size()));
  if (verbose_)
    std::printf("%6llu %s\n", static_cast<unsigned long long>(report_.events), event.c_str());
}

uint64_t& SimWorld::SleepUntil(const Actor& actor, const SimRank& rank) {
  return ranks_asleep_until_[static_cast<size_t>(&actor - actors_.data())][rank.rank()];
}

std::string SimWorld::NameOf(const Actor& actor, const SimRank& rank) const {
  return actor.job->spec().name + " rank " + std::to_string(rank.rank()) + " ";
}

SimReport SimWorld::Run(uint64_t events) {
  while (report_.events < events) Tick(true);
  server_->DieAt(nullptr, 0);
  chaos_is_over_ = true;
  if (world_->has_tier()) ArmDisk(false);
  EndLingering();
  RenewKeeper();
  server_asleep_until_ = 0;
  KillRanks();
  for (Actor& actor : actors_) Heal(&actor);
  Drain();
  if (world_->has_tier()) {
    report_.nvme_requests = world_->disk().requests();
    report_.nvme_faults = world_->disk().faults();
  }
  CountDemotions();
  report_.rare_paths = rare_paths_armed_ ? BuggifyFirings() : 0;
  report_.cleared_slots = leftovers_.cleared();
  report_.waits_seen = wakes_.looked_at();
  for (const Actor& actor : actors_) {
    for (const auto& rank : actor.ranks) {
      report_.frozen_fetched += rank->frozen_fetched();
      report_.frozen_rejected += rank->frozen_rejected();
    }
  }
  return report_;
}

void SimWorld::Tick(bool faults) {
  ++tick_;
  switch (random_.Below(8)) {
    case 0:
    case 1: Turn(); break;
    case 2: RunWork(); break;
    case 3:
    case 4: MoveCopy(); break;
    default: PokeRank(faults);
  }
  // Where nothing fails, nobody is away for longer than a lease.
  if (faults && random_.Below(64) == 0)
    world_->clock().Advance(static_cast<int64_t>(random_.Below(200)) * kNsPerMs);
  if (!saves_.empty() && random_.Below(32) == 0) EndSave(random_.Below(saves_.size()));
  if (!watches_.empty() && random_.Below(8) == 0) TellOfDeaths();
  if (lingers_ && world_->lingering() != 0) WriteLate();
  if (faults) MakeWorldFault();
}

// --- the server ---

void SimWorld::Turn() {
  if (tick_ < server_asleep_until_) return;
  if (world_->has_tier()) world_->AwaitRetry();
  bool worked = false;
  if (const char* point = server_->Run([&] { worked = world_->loop().Turn(); })) {
    KillServer(point);
    return;
  }
  if (worked) Count(server_->points_passed());
  AfterTurn();
  wakes_.CheckTurn(world_, worked, !saves_.empty());
  if (world_->loop().stopped()) KillServer("handed over");
}

void SimWorld::AfterTurn() {
  const bool changed = FollowJobs();
  CountThoseWhoComeAgain();
  RouteReplies();
  TakeSaves();
  const bool now_and_then = random_.Below(256) == 0;
  CheckTurn();
  CheckLeftovers();
  if (changed || now_and_then) CheckAll();
}

void SimWorld::RunWork() {
  if (world_->team().waiting() == 0 || tick_ < workers_asleep_until_) return;
  const uint64_t index =
      plan_.Has(Fault::kReordering) ? random_.Below(world_->team().waiting()) : 0;
  const uint64_t worker = random_.Below(kWorkers);
  Count(index * kWorkers + worker);
  const auto work = [&] {
    world_->team().RunOne(static_cast<uint32_t>(index), static_cast<uint32_t>(worker));
  };
  if (const char* point = server_->Run(work)) {
    dying_worker_ = static_cast<uint32_t>(worker);
    KillServer(point);
  }
}

void SimWorld::MoveCopy() {
  const uint32_t busy = device_.busy();
  if (busy == 0 || tick_ < copies_asleep_until_) return;
  const bool reorder = plan_.Has(Fault::kReordering);
  const uint64_t bytes = reorder && random_.Below(4) == 0 ? 64 + random_.Below(512) : 1 * kMiB;
  const auto index = static_cast<uint32_t>(reorder ? random_.Below(busy) : 0);
  Count(bytes + index);
  device_.Move(index, bytes);
}

// The model follows the server: a new job there means new weights, a seal there means a step of the
// twin.
bool SimWorld::FollowJobs() {
  bool changed = false;
  for (Actor& actor : actors_) {
    const Job* job = JobOf(actor);
    if (job == nullptr || (actor.there && job->nonce != actor.job->job_nonce())) {
      changed |= actor.there;
      CheckVanished(&actor);
    }
    if (job == nullptr) continue;
    const uint64_t attempt = actor.job->open_step();
    const uint32_t sealed = actor.job->Follow(*job);
    changed |= sealed > 0 || attempt != actor.job->open_step();
    if (sealed > 0)
      Note(actor.job->spec().name + " sealed version " + std::to_string(actor.job->sealed()));
    actor.seals += sealed;
    report_.steps_sealed += sealed;
    if (actor.job->IsPipeline()) report_.pipelined_steps += sealed;
    report_.steps_skipped += sealed > 0 && !actor.job->last_step_taken() ? 1 : 0;
    if (!job->IsRecorded()) continue;
    uint64_t published = 0;
    for (const Chunk& chunk : job->states->chunks()) published += chunk.version;
    changed |= !actor.there || std::exchange(actor.published, published) != published;
    actor.there = true;
    actor.ready = job->states->weights_ready();
    if (job->HasRanks()) actor.ranks_seen_ns = world_->clock().NowNs();
  }
  return changed;
}

// Counts ranks that come again: their former selves are being removed, and still have the room.
void SimWorld::CountThoseWhoComeAgain() {
  for (const WaitingRank& rank : world_->jobs().waiting()) {
    if (!rank.comes_again || rank.event.connection <= last_again_) continue;
    last_again_ = rank.event.connection;
    ++report_.waits_for_itself;
  }
}

// Trained states go away only when all ranks said goodbye, or when the lease is over.
void SimWorld::CheckVanished(Actor* actor) {
  if (!std::exchange(actor->there, false)) return;
  const uint64_t all = (uint64_t{1} << actor->ranks.size()) - 1;
  const bool lease_over = world_->clock().NowNs() - actor->ranks_seen_ns >= lease_ns_;
  TP_CHECK(!actor->ready || actor->said_goodbye == all || lease_over,
           "a job with weights is kept for its lease");
}

// Adds the demotions of the server that ends.
void SimWorld::CountDemotions() {
  report_.demotions += world_->tables().counters.demotions;
  report_.demotions_dropped += world_->tables().counters.demotions_dropped;
}

void SimWorld::CheckTurn() {
  CheckPoolBytes(world_);
  CheckExtents(world_);
  CheckFrozen(world_->tables(), false);
  if (world_->has_tier()) {
    CheckStaging(world_->tier(), world_->tables(), world_->jobs().demotion());
    for (const StagedPiece& piece : world_->tier().staging().all())
      report_.abandoned += piece.state == StagedState::kAbandoned ? 1 : 0;
  }
  for (const Actor& actor : actors_) {
    const Job* job = JobOf(actor);
    if (job != nullptr) CheckVersions(*job, *actor.job);
  }
}

void SimWorld::CheckLeftovers() {
  const auto lives = [this](ConnectionId connection) {
    Actor* owner = nullptr;
    return FindRank(connection, &owner) != nullptr;
  };
  leftovers_.CheckTurn(world_, {lives, &device_, saves_.size(), lease_ns_});
}

void SimWorld::CheckAll() {
  CheckTold();
  CheckTurn();
  CheckIndex(*world_);
  CheckFrozen(world_->tables(), true);
  for (const Actor& actor : actors_) {
    const Job* job = JobOf(actor);
    if (job != nullptr) CheckPlanes(world_, *job, *actor.job);
  }
}

// --- the control thread's side ---

SimRank* SimWorld::FindRank(ConnectionId connection, Actor** owner) {
  for (Actor& actor : actors_) {
    for (const auto& rank : actor.ranks) {
      if (rank->connection() != connection) continue;
      *owner = &actor;
      return rank.get();
    }
  }
  return nullptr;
}

bool SimWorld::Lives(uint64_t nonce) const {
  for (const Actor& actor : actors_) {
    for (const auto& rank : actor.ranks) {
      if (rank->nonce() == nonce) return true;
    }
  }
  return false;
}

void SimWorld::RouteReplies() {
  for (ControlReply& reply : world_->TakeAllReplies()) Route(std::move(reply));
}

// Replies to connections that are gone find nobody.
void SimWorld::Route(ControlReply reply) {
  std::visit([this](const auto& each) { On(each); }, reply);
}

void SimWorld::On(const ReserveGranted& granted) {
  Actor* owner = nullptr;
  if (SimRank* rank = FindRank(granted.connection, &owner)) rank->On(granted);
}

void SimWorld::On(const AwaitRank& awaited) {
  watches_.push_back({awaited, plan_.Has(Fault::kLeaseEnd) && random_.Below(4) == 0});
}

void SimWorld::On(const Refused& refused) {
  ++report_.refusals;
  report_.withheld += world_->tables().withheld.slots.empty() ? 0 : 1;
  Actor* owner = nullptr;
  SimRank* rank = FindRank(refused.connection, &owner);
  if (rank == nullptr) return;
  const bool comes_back =
      rank->state() == SimRank::State::kResuming && refused.why.id() != ErrorId::kNotReady;
  TP_CHECK(!comes_back || !rank->states_lost() || refused.why.id() == ErrorId::kStatesLost,
           "a rank learns that its states are lost");
  const bool in_time =
      !rank->states_lost() && world_->clock().NowNs() - rank->lost_since_ns() < lease_ns_;
  TP_CHECK(!comes_back || !in_time || rank->leaving(),
           ("a rank that comes back in time is let in, not: " + refused.why.Line()).c_str());
  const bool by_itself =
      refused.why.why().find(owner->job->spec().name + " holds") != std::string::npos;
  TP_CHECK(!by_itself,
           ("nobody is refused for room that its own job holds: " + refused.why.Line()).c_str());
  Note(NameOf(*owner, *rank) + "is refused: " + ErrorEntryOf(refused.why.id()).name);
  rank->On(refused);
  SleepUntil(*owner, *rank) = tick_ + random_.Below(kStallTicksMax);
}

void SimWorld::On(const Attached& attached) {
  Actor* owner = nullptr;
  SimRank* rank = FindRank(attached.connection, &owner);
  if (rank == nullptr) return;
  TP_CHECK(attached.sealed_version == owner->job->sealed(), "ranks attach at the sealed version");
  const bool on_gpus = lingers_ && (owner - actors_.data()) % 2 == 0;
  if (on_gpus && world_->tables().FindSlot(attached.connection) != nullptr)
    world_->PretendGpus(*world_->tables().FindSlot(attached.connection)->job);
  const bool returns = rank->state() == SimRank::State::kReturning;
  report_.comebacks += returns ? 1 : 0;
  report_.rejoins += !returns && attached.weights_ready ? 1 : 0;
  if (!returns) owner->said_goodbye &= ~(uint64_t{1} << rank->rank());
  std::string did = "attached at " + std::to_string(attached.sealed_version);
  rank->On(attached, &did);
  Note(NameOf(*owner, *rank) + did);
}

void SimWorld::On(const SessionOver& over) {
  Actor* owner = nullptr;
  SimRank* rank = FindRank(over.connection, &owner);
  if (rank == nullptr) return;
  const ErrorId id = over.why.id();
  const bool expected =
      over.why.ok() || id == ErrorId::kPeerLost || (id == ErrorId::kNotReady && handing_over_);
  TP_CHECK(expected,
           ("an honest session ends only because of a peer, not: " + over.why.Line()).c_str());
  rank->On(over);
}

void SimWorld::On(const PeerGone& gone) {
  Actor* owner = nullptr;
  if (SimRank* rank = FindRank(gone.connection, &owner); rank != nullptr && random_.Below(2) == 0)
    rank->Doom();
}

void SimWorld::On(const SaveDone& done) {
  ++report_.saves;
  Actor* owner = nullptr;
  if (SimRank* rank = FindRank(done.connection, &owner)) rank->On(done);
}

void SimWorld::TakeSaves() {
  for (SaveRequest& request : world_->TakeSaves()) {
    const uint64_t hash = HashOf(request);
    saves_.push_back({std::move(request), hash});
  }
}

void SimWorld::EndSave(size_t index) {
  const RunningSave& save = saves_[index];
  TP_CHECK(HashOf(save.request) == save.hash, "planes do not change while a save reads them");
  world_->AnswerSave(save.request.connection, Status());
  saves_.erase(saves_.begin() + static_cast<ptrdiff_t>(index));
}

// --- the end: everything works, and everything comes back ---

// Liveness: without faults, a whole set of ranks joins, trains on across a restart of the server
// without losing a rank, and leaves.
void SimWorld::Heal(Actor* actor) {
  TrainOn(actor, 1);
  if (lease_ns_ > 0) {
    std::vector<uint64_t> nonces;
    for (const auto& rank : actor->ranks) nonces.push_back(rank->nonce());
    KillServer("at the end");
    TrainOn(actor, 2);
    for (const auto& rank : actor->ranks) {
      TP_CHECK(rank->nonce() == nonces[rank->rank()],
               "without other faults a server's death costs no rank");
    }
  } else {
    TrainOn(actor, 1);
  }
  for (const auto& rank : actor->ranks) LetLeave(actor, rank.get());
  Note(actor->job->spec().name + " is healed");
}

void SimWorld::TrainOn(Actor* actor, uint64_t steps) {
  uint64_t goal = 0;  // set when all ranks are there
  for (uint32_t tick = 0; goal == 0 || actor->seals < goal; ++tick) {
    TP_CHECK(tick < kHealTicksMax, "a healthy job makes progress");
    for (const auto& rank : actor->ranks) {
      if (rank->state() != SimRank::State::kAbsent || tick_ < SleepUntil(*actor, *rank)) continue;
      rank->Reserve();
      // It may be refused until others' leases have ended.
      world_->clock().Advance(std::max(kNsPerMs, lease_ns_ / 16));
    }
    const auto trains = [](const auto& rank) { return rank->state() == SimRank::State::kRunning; };
    if (goal == 0 && std::all_of(actor->ranks.begin(), actor->ranks.end(), trains))
      goal = actor->seals + steps;
    Tick(false);
  }
}

void SimWorld::Drain() {
  for (uint32_t tick = 0; !world_->tables().jobs.empty(); ++tick) {
    TP_CHECK(tick < kHealTicksMax, "all jobs go away");
    world_->clock().Advance(std::max(10 * kNsPerMs, lease_ns_ / 256));
    Tick(false);
    while (!saves_.empty()) EndSave(0);
  }
  Turn();
  CheckAll();
  TP_CHECK(world_->tables().slots.empty(), "no slot is left");
  TP_CHECK(world_->tables().frozen->chunks().empty(), "no frozen chunk is left");
  TP_CHECK(world_->pool().free_bytes() == world_->pool().total_bytes(), "all memory came back");
  TP_CHECK(world_->pool().largest_free_bytes() == world_->pool().total_bytes(),
           "the pool is whole again");
  if (!world_->has_tier()) return;
  TP_CHECK(world_->tier().used_bytes() == 0, "all ranges of the drives came back");
  TP_CHECK(world_->tier().staging_free() == StateTier::kStagingSlots, "all staging came back");
}

SimReport RunSeed(uint64_t seed, uint64_t events, bool verbose) {
  const uint64_t descriptors = OpenDescriptors();
  SimReport report;
  {
    SimWorld world(seed, verbose);
    report = world.Run(events);
  }
  TP_CHECK(OpenDescriptors() == descriptors, "no descriptor is left");
  return report;
}

}  // namespace tidepool::memserver

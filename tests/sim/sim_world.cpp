#include "tests/sim/sim_world.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/check.h"

namespace tidepool::memserver {
namespace {

constexpr uint64_t kFnvBasis = 14695981039346656037ULL;
constexpr uint64_t kFnvPrime = 1099511628211ULL;
constexpr uint32_t kHealTicksMax = 200000;

uint64_t HashBytes(uint64_t hash, const void* data, uint64_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (uint64_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * kFnvPrime;
  return hash;
}

uint64_t HashOf(const SaveRequest& request) {
  uint64_t hash = kFnvBasis;
  for (const SavedTensor& tensor : request.tensors) hash = HashBytes(hash, tensor.data, tensor.count * sizeof(float));
  return hash;
}

uint64_t OpenDescriptors() {
  return static_cast<uint64_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

}  // namespace

SimWorld::SimWorld(uint64_t seed, bool verbose) : random_(seed), verbose_(verbose) {
  report_.hash = kFnvBasis;
  uint64_t sum = 0, largest = 0;
  const uint64_t jobs = 1 + random_.Below(3);
  for (uint32_t i = 0; i < jobs; ++i) {
    actors_.emplace_back();
    actors_.back().job = std::make_unique<SimJob>(i + 1, &random_);
    const uint64_t bytes = shm::StateBytesOf(actors_.back().job->spec()).total();
    sum += bytes;
    largest = std::max(largest, bytes);
  }
  WorldOptions options;
  options.pool_bytes = random_.Below(3) == 0 ? largest : sum;  // sometimes too small for all at once
  options.device = &device_;
  options.loop.lease_ns = random_.Below(3) == 0 ? 0 : 2 * kNsPerSecond;
  options.loop.run_inline_work = false;
  world_ = std::make_unique<ServeWorld>(options);
  for (Actor& actor : actors_) {
    for (Rank rank = 0; rank < actor.job->spec().world; ++rank) {
      actor.ranks.push_back(std::make_unique<SimRank>(world_.get(), actor.job.get(), rank, &random_));
    }
  }
}

void SimWorld::Note(const std::string& event) {
  if (event.empty()) return;
  ++report_.events;
  report_.hash = HashBytes(report_.hash, event.data(), event.size());
  if (verbose_) std::printf("%6llu %s\n", static_cast<unsigned long long>(report_.events), event.c_str());
}

SimReport SimWorld::Run(uint32_t ticks) {
  for (uint32_t i = 0; i < ticks; ++i) Tick(true);
  KillAll();
  for (Actor& actor : actors_) Heal(&actor);
  Drain();
  return report_;
}

void SimWorld::Tick(bool faults) {
  switch (random_.Below(8)) {
    case 0:
    case 1: Turn(); break;
    case 2:
      if (world_->team().waiting() > 0) world_->team().RunOne(static_cast<uint32_t>(random_.Below(world_->team().waiting())));
      break;
    case 3: MoveSomething(); break;
    default: PokeRank(faults);
  }
  if (random_.Below(64) == 0) world_->clock().Advance(static_cast<int64_t>(random_.Below(200)) * kNsPerMs);
  if (!saves_.empty() && random_.Below(32) == 0) EndSave(random_.Below(saves_.size()));
}

void SimWorld::MoveSomething() {
  const uint32_t busy = device_.busy();
  if (busy == 0) return;
  const uint64_t bytes = random_.Below(4) == 0 ? 64 + random_.Below(512) : 1 * kMiB;
  device_.Move(static_cast<uint32_t>(random_.Below(busy)), bytes);
}

void SimWorld::Turn() {
  world_->loop().Turn();
  FollowJobs();
  RouteReplies();
  TakeSaves();
  CheckPool();
  if (random_.Below(8) == 0) CheckPlanes();
}

// The model follows the server: a new job there means new weights, a seal there means a step of the model.
void SimWorld::FollowJobs() {
  for (Actor& actor : actors_) {
    const Job* job = world_->tables().FindJob(actor.job->spec().name);
    if (job == nullptr) continue;
    if (job->id != actor.server_job) {
      if (actor.server_job != 0) actor.job->Reset();
      actor.server_job = job->id;
    }
    if (!job->IsRecorded()) continue;
    const Version sealed = job->states->sealed_version();
    TP_CHECK(sealed == actor.job->sealed() || sealed == actor.job->sealed() + 1, "a sealed step is never lost, and none is skipped");
    if (sealed == actor.job->sealed()) continue;
    actor.job->Seal();
    ++report_.steps_sealed;
    report_.steps_skipped += job->states->last_step().skipped;
    Note(actor.job->spec().name + " sealed version " + std::to_string(sealed));
  }
}

void SimWorld::CheckPool() const {
  uint64_t used = 0;
  for (const auto& job : world_->tables().jobs) used += job->states->pool_bytes();
  TP_CHECK(used + world_->pool().free_bytes() == world_->pool().total_bytes(), "pool bytes add up");
}

void SimWorld::CheckPlanes() const {
  for (const Actor& actor : actors_) {
    const Job* job = world_->tables().FindJob(actor.job->spec().name);
    if (job == nullptr || !job->IsRecorded() || !job->states->weights_ready()) continue;
    for (ChunkId id = 0; id < actor.job->spec().chunks.size(); ++id) {
      const Chunk& chunk = job->states->chunk(id);
      const Version sealed = job->states->sealed_version();
      TP_CHECK(chunk.version() == sealed || chunk.version() + 1 == sealed, "a chunk is at most one step behind");
      if (chunk.state == ChunkState::kUpdating) continue;
      const std::vector<float> values(chunk.planes.master, chunk.planes.master + chunk.elements);
      const std::string wrong = actor.job->Compare(chunk.version(), id, 0, values, 1e-4);
      TP_CHECK(wrong.empty(), ("a plane does not hold its version: " + wrong).c_str());
    }
  }
}

SimRank* SimWorld::FindRank(ConnectionId connection, Actor** owner) {
  for (Actor& actor : actors_) {
    for (const auto& rank : actor.ranks) {
      if (rank->state() == SimRank::State::kAbsent || rank->connection() != connection) continue;
      *owner = &actor;
      return rank.get();
    }
  }
  return nullptr;
}

// Replies to connections that are gone find nobody.
void SimWorld::RouteReplies() {
  Actor* owner = nullptr;
  while (const auto granted = world_->TakeReply<ReserveGranted>()) {
    SimRank* rank = FindRank(granted->connection, &owner);
    if (rank == nullptr) continue;
    const bool alone = std::all_of(owner->ranks.begin(), owner->ranks.end(), [](const auto& other) {
      return other->state() == SimRank::State::kAbsent || other->state() == SimRank::State::kReserving;
    });
    if (alone) owner->job->BeginRun();
    rank->On(*granted);
  }
  while (const auto refused = world_->TakeReply<Refused>()) {
    ++report_.refusals;
    if (SimRank* rank = FindRank(refused->connection, &owner)) rank->On(*refused);
  }
  while (const auto attached = world_->TakeReply<Attached>()) {
    SimRank* rank = FindRank(attached->connection, &owner);
    if (rank == nullptr) continue;
    TP_CHECK(attached->sealed_version == owner->job->sealed(), "ranks attach at the sealed version");
    report_.rejoins += attached->weights_ready ? 1 : 0;
    rank->On(*attached);
    Note(owner->job->spec().name + " rank " + std::to_string(rank->rank()) + " attached at " + std::to_string(attached->sealed_version));
  }
  while (const auto over = world_->TakeReply<SessionOver>()) {
    if (over->why.ok()) continue;  // the answer to a goodbye
    TP_CHECK(over->why.id() == ErrorId::kPeerLost, ("an honest session ends only because of a peer, not: " + over->why.what()).c_str());
    if (SimRank* rank = FindRank(over->connection, &owner)) rank->Doom();
  }
  while (const auto gone = world_->TakeReply<PeerGone>()) {
    if (SimRank* rank = FindRank(gone->connection, &owner); rank != nullptr && random_.Below(2) == 0) rank->Doom();
  }
  while (world_->TakeReply<SaveDone>()) ++report_.saves;
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

void SimWorld::PokeRank(bool faults) {
  Actor& actor = actors_[random_.Below(actors_.size())];
  SimRank& rank = *actor.ranks[random_.Below(actor.ranks.size())];
  const std::string name = actor.job->spec().name + " rank " + std::to_string(rank.rank()) + " ";
  if (rank.state() == SimRank::State::kAbsent) {
    if (!faults || random_.Below(8) != 0) return;
    rank.Reserve();
    Note(name + "asks to join");
    return;
  }
  if (faults && random_.Below(400) == 0) {
    Fault(&actor, &rank);
    return;
  }
  std::string did;
  rank.Poke(&did);
  if (!did.empty()) Note(name + did);
}

void SimWorld::Fault(Actor* actor, SimRank* rank) {
  const std::string name = actor->job->spec().name + " rank " + std::to_string(rank->rank()) + " ";
  switch (random_.Below(4)) {
    case 0:
    case 1:
      ++report_.deaths;
      Note(name + "is killed");
      rank->Die();
      return;
    case 2:
      if (rank->state() != SimRank::State::kRunning) return;
      Note(name + "leaves");
      rank->Leave();
      return;
    default:
      if (rank->state() != SimRank::State::kRunning) return;
      Note(name + "saves");
      world_->Post(SaveWeights{rank->connection(), UniqueFd(), "w", rank->version()});
  }
}

void SimWorld::KillAll() {
  for (Actor& actor : actors_) {
    for (const auto& rank : actor.ranks) {
      if (rank->state() != SimRank::State::kAbsent) rank->Die();
    }
  }
  Note("all ranks are killed");
  if (random_.Below(2) == 0) world_->clock().Advance(3 * kNsPerSecond);
}

// Liveness: without faults, a whole set of ranks joins, trains two steps and leaves.
void SimWorld::Heal(Actor* actor) {
  const uint64_t goal = report_.steps_sealed + 2;
  for (uint32_t tick = 0; report_.steps_sealed < goal; ++tick) {
    TP_CHECK(tick < kHealTicksMax, "a healthy job makes progress");
    for (const auto& rank : actor->ranks) {
      if (rank->state() != SimRank::State::kAbsent) continue;
      rank->Reserve();
      world_->clock().Advance(kNsPerMs);  // it may be refused until others' leases have ended
    }
    Tick(false);
  }
  for (const auto& rank : actor->ranks) rank->Leave();
  Note(actor->job->spec().name + " is healed");
}

void SimWorld::Drain() {
  for (uint32_t tick = 0; !world_->tables().jobs.empty(); ++tick) {
    TP_CHECK(tick < kHealTicksMax, "all jobs go away");
    world_->clock().Advance(10 * kNsPerMs);
    Tick(false);
    while (!saves_.empty()) EndSave(0);
  }
  Turn();
  TP_CHECK(world_->tables().seats.empty(), "no seat is left");
  TP_CHECK(world_->pool().free_bytes() == world_->pool().total_bytes(), "all memory came back");
  TP_CHECK(world_->pool().largest_free_bytes() == world_->pool().total_bytes(), "the pool is whole again");
}

SimReport RunSeed(uint64_t seed, uint32_t ticks, bool verbose) {
  const uint64_t descriptors = OpenDescriptors();
  SimReport report;
  {
    SimWorld world(seed, verbose);
    report = world.Run(ticks);
  }
  TP_CHECK(OpenDescriptors() == descriptors, "no descriptor is left");
  return report;
}

}  // namespace tidepool::memserver

// Admission in the serve loop: quotas, the queue of ranks that wait for room, and sums that always
// add up.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "memserver/residency/job_ledger.h"
#include "memserver/jobs/admission/build_ledger.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace admission_test {

constexpr uint32_t kAlice = 1000, kBob = 1001;

SpecOptions Small(const std::string& name) {
  return {.name = name, .rcache_bytes = 4096};
}

uint64_t BytesOfSmall() {
  return shm::StateBytesOf(MakeSpec(Small("x"))).total();
}

// Room for `jobs` small jobs.
WorldOptions RoomFor(uint32_t jobs) {
  WorldOptions options;
  options.pool_bytes = jobs * BytesOfSmall();
  return options;
}

ErrorId RefusedWith(ServeWorld* world) {
  const auto refused = world->TakeReply<Refused>();
  return refused ? refused->why.id() : ErrorId::kNone;
}

// Asks to join and waits if need be; the place in the queue, 0 when it was granted at once.
struct Asked {
  ConnectionId connection = 0;
  uint32_t place = 0;
};
Asked AskToWait(ServeWorld* world, const shm::JobSpec& spec, Rank rank = 0, uint32_t uid = kAlice) {
  world->MayWait(true);
  Asked asked;
  asked.connection = world->Reserve(spec, rank, uid);
  world->MayWait(false);
  world->Settle();
  if (const auto queued = world->TakeReply<Queued>()) asked.place = queued->place;
  return asked;
}

bool GrantedTo(ServeWorld* world, ConnectionId connection) {
  world->Settle();
  const auto granted = world->TakeReply<ReserveGranted>();
  return granted && granted->connection == connection;
}

TEST(Quotas, ALimitRefusesOneUserAndNotAnother) {
  WorldOptions options = RoomFor(4);
  options.loop.quotas = {{UserAccount(kAlice), {.limit = BytesOfSmall()}}};
  ServeWorld world(options);
  EXPECT_NE(world.Join(MakeSpec(Small("one")), 0, kAlice), nullptr);
  EXPECT_EQ(world.Join(MakeSpec(Small("two")), 0, kAlice), nullptr);
  EXPECT_EQ(RefusedWith(&world), ErrorId::kQuotaExceeded);
  EXPECT_NE(world.Join(MakeSpec(Small("two")), 0, kBob), nullptr);
}

TEST(Quotas, WhatIsGuaranteedIsThereWhenItsOwnerComes) {
  WorldOptions options = RoomFor(3);
  options.loop.quotas = {{UserAccount(kAlice), {.guarantee = 2 * BytesOfSmall()}}};
  ServeWorld world(options);
  EXPECT_NE(world.Join(MakeSpec(Small("bob1")), 0, kBob), nullptr);
  EXPECT_EQ(world.Join(MakeSpec(Small("bob2")), 0, kBob), nullptr);
  EXPECT_EQ(RefusedWith(&world), ErrorId::kPoolFull);
  EXPECT_NE(world.Join(MakeSpec(Small("alice1")), 0, kAlice), nullptr);
  EXPECT_NE(world.Join(MakeSpec(Small("alice2")), 0, kAlice), nullptr);
  EXPECT_EQ(world.pool().free_bytes(), 0u);
}

TEST(Quotas, AnAdminChangesThemWhileTheJobRuns) {
  ServeWorld world(RoomFor(3));
  const auto one = world.Join(MakeSpec(Small("one")), 0);
  ASSERT_NE(one, nullptr);
  EXPECT_TRUE(world.SetQuota("one", {.limit = BytesOfSmall(), .weight = 3}).ok());
  EXPECT_EQ(world.tables().jobs[0]->account, "job:one");
  EXPECT_EQ(world.tables().jobs[0]->quota.weight, 3u);
  EXPECT_TRUE(world.SetQuota("1", {.guarantee = BytesOfSmall()}).ok()) << "by its number";
  EXPECT_EQ(world.SetQuota("nobody", {.weight = 2}).id(), ErrorId::kAdminNotFound);
  EXPECT_EQ(world.SetQuota("one", {.guarantee = 2 * BytesOfSmall()}).id(), ErrorId::kConfigBadValue)
      << "above its limit";
  EXPECT_EQ(world.SetQuota("one", {.guarantee = 4 * BytesOfSmall(), .limit = kNoLimit}).id(),
            ErrorId::kQuotaRefused);
  world.Leave(*one);
  world.Settle();
  ASSERT_NE(world.Join(MakeSpec(Small("one")), 0), nullptr);
  EXPECT_EQ(world.tables().jobs[0]->quota, Quota{}) << "what was set ended with the job";
}

TEST(Quotas, AWeightChangesTheShareAndNotWhoPaysForTheMemory) {
  WorldOptions options = RoomFor(2);
  options.loop.quotas = {
      {UserAccount(kAlice), {.guarantee = BytesOfSmall(), .limit = BytesOfSmall()}}};
  ServeWorld world(options);
  ASSERT_NE(world.Join(MakeSpec(Small("one")), 0, kAlice), nullptr);
  EXPECT_TRUE(world.SetQuota("one", {.weight = 4, .priority = Priority::kHigh}).ok());
  const Job& one = *world.tables().jobs[0];
  EXPECT_EQ(one.account, UserAccount(kAlice));
  EXPECT_EQ(one.worker_share.weight, 4u);
  EXPECT_EQ(one.copy_share.priority, Priority::kHigh);
  EXPECT_EQ(world.Join(MakeSpec(Small("two")), 0, kAlice), nullptr)
      << "the limit is the user's still";
  EXPECT_EQ(RefusedWith(&world), ErrorId::kQuotaExceeded);
}

TEST(Quotas, AJobLeavesItsAccountOnlyWhereTheGuaranteeThereCanStillBeKept) {
  WorldOptions options = RoomFor(2);
  options.loop.quotas = {{UserAccount(kAlice), {.guarantee = BytesOfSmall()}}};
  ServeWorld world(options);
  ASSERT_NE(world.Join(MakeSpec(Small("alice")), 0, kAlice), nullptr);
  const auto bob = world.Join(MakeSpec(Small("bob")), 0, kBob);
  ASSERT_NE(bob, nullptr);
  EXPECT_EQ(world.SetQuota("alice", {.limit = kNoLimit}).id(), ErrorId::kQuotaRefused);
  EXPECT_EQ(world.tables().jobs[0]->account, UserAccount(kAlice))
      << "a change that is refused changes nothing";
  world.Leave(*bob);
  world.Settle();
  EXPECT_TRUE(world.SetQuota("alice", {.limit = kNoLimit}).ok());
  EXPECT_EQ(world.Join(MakeSpec(Small("bob")), 0, kBob), nullptr) << "that room is alice's";
}

TEST(Quotas, AfterARestartTheConfigurationHoldsAndWhatIsHeldIsHeld) {
  WorldOptions options = RoomFor(1);
  options.loop.await_ns_min = kNsPerSecond;
  options.loop.quotas = {{UserAccount(kAlice), {.weight = 2}}};
  ServeWorld world(options);
  ASSERT_NE(world.Join(MakeSpec(Small("one")), 0, kAlice), nullptr);
  ASSERT_TRUE(world.SetQuota("one", {.limit = 2 * BytesOfSmall(), .weight = 7}).ok());
  ASSERT_EQ(world.tables().jobs[0]->account, "job:one");
  world.Restart();
  world.Settle();
  ASSERT_EQ(world.tables().jobs.size(), 1u);
  EXPECT_EQ(world.tables().jobs[0]->account, UserAccount(kAlice));
  EXPECT_EQ(world.tables().jobs[0]->worker_share.weight, 2u);
  EXPECT_EQ(AskToWait(&world, MakeSpec(Small("two")), 0, kBob).place, 1u);
  world.clock().Advance(2 * kNsPerSecond);
  world.Settle();
  EXPECT_TRUE(world.TakeReply<ReserveGranted>().has_value())
      << "the rank of the first job did not come back";
}

TEST(Queue, HoldsNoMoreRanksThanThereAreSessions) {
  WorldOptions options = RoomFor(1);
  options.loop.limits.sessions_max = 2;
  ServeWorld world(options);
  ASSERT_NE(world.Join(MakeSpec(Small("first")), 0), nullptr);
  EXPECT_EQ(AskToWait(&world, MakeSpec(Small("second"))).place, 1u);
  EXPECT_EQ(AskToWait(&world, MakeSpec(Small("third"))).place, 2u);
  EXPECT_EQ(AskToWait(&world, MakeSpec(Small("fourth"))).place, 0u);
  EXPECT_EQ(RefusedWith(&world), ErrorId::kTooManySessions);
}

TEST(Queue, AJobWithoutRoomWaitsAndStartsWhenThereIsSome) {
  ServeWorld world(RoomFor(1));
  const auto first = world.Join(MakeSpec(Small("first")), 0);
  const Asked second = AskToWait(&world, MakeSpec(Small("second")));
  EXPECT_EQ(second.place, 1u);
  EXPECT_FALSE(GrantedTo(&world, second.connection));
  world.Leave(*first);
  EXPECT_TRUE(GrantedTo(&world, second.connection));
  EXPECT_TRUE(world.jobs().waiting().empty());
}

TEST(Queue, WhatCouldNeverFitIsRefusedAtOnce) {
  ServeWorld world(RoomFor(1));
  SpecOptions large = Small("large");
  large.chunks = 4;
  EXPECT_EQ(AskToWait(&world, MakeSpec(large)).place, 0u);
  EXPECT_EQ(RefusedWith(&world), ErrorId::kPoolFull);
}

TEST(Queue, ALargeJobIsNotPassedBySmallOnes) {
  ServeWorld world(RoomFor(3));
  const auto one = world.Join(MakeSpec(Small("one")), 0);
  const auto two = world.Join(MakeSpec(Small("two")), 0);
  SpecOptions large = Small("large");
  large.chunks = 4;
  const Asked waits = AskToWait(&world, MakeSpec(large));
  EXPECT_EQ(waits.place, 1u);
  EXPECT_EQ(AskToWait(&world, MakeSpec(Small("small"))).place, 2u) << "although it would fit";
  EXPECT_EQ(world.Join(MakeSpec(Small("hasty")), 0), nullptr);
  EXPECT_EQ(RefusedWith(&world), ErrorId::kPoolFull);
  world.Leave(*one);
  EXPECT_TRUE(GrantedTo(&world, waits.connection));
}

TEST(Queue, AHigherPriorityComesFirst) {
  WorldOptions options = RoomFor(1);
  options.loop.quotas = {{UserAccount(kBob), {.priority = Priority::kHigh}}};
  ServeWorld world(options);
  const auto first = world.Join(MakeSpec(Small("first")), 0);
  const Asked alice = AskToWait(&world, MakeSpec(Small("alice")), 0, kAlice);
  const Asked bob = AskToWait(&world, MakeSpec(Small("bob")), 0, kBob);
  EXPECT_EQ(alice.place, 1u);
  EXPECT_EQ(bob.place, 1u);
  world.Leave(*first);
  EXPECT_TRUE(GrantedTo(&world, bob.connection));
}

TEST(Queue, WhoIsAboveTheLimitOfItsAccountHoldsUpNobody) {
  WorldOptions options = RoomFor(3);
  options.loop.quotas = {{UserAccount(kAlice), {.limit = BytesOfSmall()}}};
  ServeWorld world(options);
  const auto first = world.Join(MakeSpec(Small("alice1")), 0, kAlice);
  const Asked waits = AskToWait(&world, MakeSpec(Small("alice2")), 0, kAlice);
  EXPECT_EQ(waits.place, 1u);
  EXPECT_NE(world.Join(MakeSpec(Small("bob")), 0, kBob), nullptr);
  world.Leave(*first);
  EXPECT_TRUE(GrantedTo(&world, waits.connection));
}

TEST(Queue, AllRanksOfAJobWaitAndStartTogether) {
  ServeWorld world(RoomFor(2));
  const auto first = world.Join(MakeSpec(Small("first")), 0);
  const auto other = world.Join(MakeSpec(Small("other")), 0);
  SpecOptions pair = Small("pair");
  pair.world = 2;
  for (Rank rank = 0; rank < 2; ++rank)
    EXPECT_EQ(AskToWait(&world, MakeSpec(pair), rank).place, rank + 1u);
  world.Leave(*first);
  world.Leave(*other);
  world.Settle();
  for (Rank rank = 0; rank < 2; ++rank) {
    const auto turn = world.TakeReply<Queued>();
    EXPECT_TRUE(turn && turn->why.ok()) << "it is told that its turn has come";
    EXPECT_TRUE(world.TakeReply<ReserveGranted>().has_value());
  }
}

TEST(Queue, ARaisedLimitLetsTheNextOneIn) {
  WorldOptions options = RoomFor(2);
  options.loop.quotas = {{UserAccount(kAlice), {.limit = BytesOfSmall()}}};
  ServeWorld world(options);
  const auto first = world.Join(MakeSpec(Small("one")), 0, kAlice);
  const Asked waits = AskToWait(&world, MakeSpec(Small("two")), 0, kAlice);
  ASSERT_EQ(waits.place, 1u);
  // The first job gets an account of its own, so that the user's is empty again.
  EXPECT_TRUE(world.SetQuota("one", {.limit = kNoLimit}).ok());
  EXPECT_TRUE(GrantedTo(&world, waits.connection));
}

TEST(Queue, WhoDiesOrWhomTheServerLeavesIsForgotten) {
  ServeWorld world(RoomFor(1));
  const auto first = world.Join(MakeSpec(Small("first")), 0);
  const Asked dies = AskToWait(&world, MakeSpec(Small("dies")));
  const Asked stays = AskToWait(&world, MakeSpec(Small("stays")));
  EXPECT_EQ(stays.place, 2u);
  world.Post(ConnectionLost{dies.connection, "killed by the test"});
  world.Settle();
  ASSERT_EQ(world.jobs().waiting().size(), 1u);
  world.Post(StopServing{});
  world.Settle();
  EXPECT_EQ(RefusedWith(&world), ErrorId::kSessionEnded);
  EXPECT_TRUE(world.jobs().waiting().empty());
}

// --- sums, whatever happens ---

constexpr uint32_t kUsers = 3, kNames = 6;
#ifdef TIDEPOOL_SANITIZED
constexpr uint64_t kSeeds = 60;
#else
constexpr uint64_t kSeeds = 2000;
#endif

// Jobs of three users come, wait, train, die and leave in an order that the seed decides, while
// quotas change. In every second world there are drives: some users' jobs spill, those of others
// have the states of detached ones moved there.
class Crowd {
 public:
  explicit Crowd(uint64_t seed) : random_(seed), world_(OptionsOf(&random_, seed % 2 == 1)) {}

  void Run(int events) {
    for (int i = 0; i < events; ++i) {
      Happen();
      // What becomes free in one turn is given to those that wait in the next.
      const int turns = world_.has_tier() ? 2 + 6 * static_cast<int>(random_.Below(3)) : 2;
      for (int turn = 0; turn < turns; ++turn) world_.loop().Turn();
      Hear();
      Check();
    }
    End();
  }

 private:
  struct Somebody {
    ConnectionId connection = 0;
    std::string job;
    Rank rank = 0;
    std::unique_ptr<FakeRank> attached;
  };

  static WorldOptions OptionsOf(SplitMix64* random, bool drives) {
    WorldOptions options;
    options.pool_bytes = (4 + random->Below(12)) * BytesOfSmall() / 2;
    options.loop.times.lease_ns = random->Below(2) == 0 ? 0 : kNsPerSecond;
    options.loop.limits.sessions_max = 3 + static_cast<uint32_t>(random->Below(6));
    options.loop.rcache_limit = (3 + random->Below(8)) * 4096;
    if (drives) {
      options.nvme_directories = 2;
      options.nvme_bytes = kMiB;
      options.loop.times.lease_ns = 100 * kNsPerSecond;
    }
    for (uint32_t user = 0; user < kUsers; ++user) {
      if (random->Below(2) == 0) continue;
      Quota quota;
      if (drives && random->Below(3) != 0) quota.nvme_limit = 0;
      quota.guarantee = random->Below(2) * options.pool_bytes / (2 * kUsers);
      if (random->Below(2) == 0) quota.limit = options.pool_bytes / 2;
      quota.priority = static_cast<Priority>(random->Below(kPriorities));
      options.loop.quotas.push_back({UserAccount(kAlice + user), quota});
    }
    return options;
  }

  // The job of a name has always the same form and user. Two jobs of one user list the same frozen
  // chunk, and two of another one too.
  shm::JobSpec SpecOf(uint64_t number) const {
    SpecOptions options = Small("job" + std::to_string(number));
    options.world = 1 + static_cast<uint32_t>(number % 2);
    options.chunks = 1 + static_cast<uint32_t>(number);
    shm::JobSpec spec = MakeSpec(options);
    if (number % kUsers != 2) spec.frozen = {{16, DType::kF32, HashOf({})}};
    return spec;
  }

  void Happen() {
    switch (random_.Below(8)) {
      case 0:
      case 1:
      case 2: return Come();
      case 3:
        if (!people_.empty()) Vanish(random_.Below(people_.size()));
        return;
      case 4: return Leave();
      case 5: return Load();
      case 6:
        if (world_.has_tier()) return Load();
        return world_.clock().Advance(static_cast<int64_t>(random_.Below(2)) * kNsPerSecond);
      default: return ChangeQuota();
    }
  }

  void Come() {
    const uint64_t number = random_.Below(kNames);
    const shm::JobSpec spec = SpecOf(number);
    const auto rank = static_cast<Rank>(random_.Below(spec.world));
    world_.MayWait(random_.Below(2) == 0);
    const ConnectionId connection =
        world_.Reserve(spec, rank, kAlice + static_cast<uint32_t>(number % kUsers));
    people_.push_back({connection, spec.name, rank, nullptr});
  }

  void Vanish(uint64_t index) {
    world_.Post(ConnectionLost{people_[index].connection, "killed by the test"});
    people_.erase(people_.begin() + static_cast<ptrdiff_t>(index));
  }

  void Leave() {
    for (size_t i = 0; i < people_.size(); ++i) {
      if (people_[i].attached == nullptr) continue;
      world_.Leave(*people_[i].attached);
      people_.erase(people_.begin() + static_cast<ptrdiff_t>(i));
      return;
    }
  }

  // A rank whose shards have weights: its job is kept when it dies, where there is a lease.
  void Load() {
    bool loaded = false;
    for (Somebody& one : people_) {
      const Job* job = world_.tables().FindJob(one.job);
      if (loaded && !world_.has_tier()) return;  // there as many as can be: who has weights is kept
      if (one.attached == nullptr || job == nullptr || one.attached->Ended() || job->run_broken() ||
          job->states->weights_ready())
        continue;
      for (ChunkId id = 0; id < job->spec().chunks.size(); ++id) {
        const uint64_t count = job->states->chunk(id).shard_elements,
                       begin = job->states->ShardBegin(id, one.rank);
        if (job->states->intake(id, one.rank).put_elements > 0) continue;
        one.attached->Put(id, begin, count, 0);
        for (int turn = 0; turn < 4; ++turn) world_.loop().Turn();
        one.attached->Take();
      }
      loaded = true;
    }
  }

  void ChangeQuota() {
    if (world_.tables().jobs.empty()) return;
    const std::string name =
        world_.tables().jobs[random_.Below(world_.tables().jobs.size())]->spec().name;
    QuotaChange change;
    if (random_.Below(2) == 0) change.guarantee = random_.Below(4) * BytesOfSmall();
    if (random_.Below(2) == 0)
      change.limit = random_.Below(2) == 0 ? kNoLimit : random_.Below(8) * BytesOfSmall();
    if (random_.Below(2) == 0) change.priority = static_cast<Priority>(random_.Below(kPriorities));
    const Ledger before = LedgerNow();
    const Status changed = world_.SetQuota(name, change);
    Hear();
    if (changed.ok() || changed.id() == ErrorId::kAdminNotFound) return;
    EXPECT_EQ(LedgerNow().quotas.size(), before.quotas.size())
        << "a change that is refused changes nothing";
  }

  Somebody* Find(ConnectionId connection) {
    const auto it = std::find_if(people_.begin(), people_.end(),
                                 [&](const Somebody& one) { return one.connection == connection; });
    return it == people_.end() ? nullptr : &*it;
  }
  void Forget(ConnectionId connection) {
    std::erase_if(people_, [&](const Somebody& one) { return one.connection == connection; });
  }

  void Hear() {
    for (ControlReply& reply : world_.TakeAllReplies()) {
      if (const auto* refused = std::get_if<Refused>(&reply)) Forget(refused->connection);
      if (const auto* over = std::get_if<SessionOver>(&reply)) Forget(over->connection);
      if (const auto* granted = std::get_if<ReserveGranted>(&reply)) {
        Somebody* one = Find(granted->connection);
        if (one != nullptr && random_.Below(4) != 0)
          one->attached = world_.Attach(*granted, one->rank);
        ++grants_;
      }
    }
  }

  Ledger LedgerNow() {
    LoopNeighbours neighbours;
    neighbours.clock = &world_.clock();
    neighbours.pool = &world_.pool();
    return BuildLedger(neighbours, options_of_loop(), world_.tables(), world_.jobs().settings());
  }
  const LoopOptions& options_of_loop() const { return world_.options().loop; }

  void Check() {
    const Ledger ledger = LedgerNow();
    std::map<std::string, uint64_t> by_account;
    uint64_t table_bytes = 0, rcache_bytes = 0;
    for (const auto& job : world_.tables().jobs) {
      table_bytes += job->states->pool_bytes();
      by_account[job->account] += job->states->pool_bytes();
      for (const SessionSlot* slot : job->slots)
        rcache_bytes += slot == nullptr ? 0 : slot->rcache_bytes;
    }
    for (const auto& [name, chunk] : world_.tables().frozen->chunks()) {
      table_bytes += chunk->extent.bytes;
      by_account[UserAccount(name.uid)] += chunk->extent.bytes;
      shared_ += chunk->holders > 1 ? 1 : 0;
    }
    ASSERT_EQ(table_bytes + world_.pool().free_bytes(), world_.pool().total_bytes())
        << "what the table holds is what the pool lacks";
    ASSERT_EQ(ledger.PoolUsed(), table_bytes);
    uint64_t nvme_bytes = 0;
    for (const auto& job : world_.tables().jobs) nvme_bytes += job->states->nvme_total();
    ASSERT_EQ(nvme_bytes, world_.has_tier() ? world_.tier().used_bytes() : 0)
        << "and of the drives";
    for (const auto& [account, bytes] : by_account) {
      ASSERT_LE(ledger.NvmeUsedBy(account), ledger.QuotaOf(account).nvme_limit) << account;
    }
    for (const auto& [account, bytes] : by_account)
      ASSERT_EQ(ledger.PoolUsedBy(account), bytes) << account;
    ASSERT_LE(rcache_bytes, ledger.RcacheUsed())
        << "ranks hold no more than was reserved for their runs";
    ASSERT_LE(ledger.RcacheUsed(), options_of_loop().rcache_limit);
    ASSERT_LE(world_.tables().slots.size(), options_of_loop().limits.sessions_max);
    CheckWaiting(ledger);
  }

  // Whoever waits is in order, and the first one waits for a reason.
  void CheckWaiting(const Ledger& ledger) {
    const auto& waiting = world_.jobs().waiting();
    for (size_t i = 1; i < waiting.size(); ++i)
      ASSERT_GE(waiting[i - 1].priority, waiting[i].priority);
    for (const WaitingRank& rank : waiting)
      ASSERT_NE(Find(rank.event.connection), nullptr) << "nobody waits who has gone";
    if (waiting.empty() || !world_.tables().jobs.empty()) return;
    const shm::JobSpec& spec = *waiting.front().event.spec;
    const Demand demand{spec.name, waiting.front().account, shm::StateBytesOf(spec).total(),
                        spec.world * spec.rcache_bytes, spec.world};
    ADD_FAILURE() << spec.name << " waits although nobody holds anything: "
                  << CouldEverFit(ledger, demand).Line();
  }

  void End() {
    while (!people_.empty()) {
      Vanish(0);
      for (int turn = 0; turn < 3; ++turn) world_.loop().Turn();
      Hear();
      Check();
    }
    demotions_ = world_.tables().counters.demotions;
    dropped_ = world_.tables().counters.demotions_dropped;
    world_.clock().Advance(200 * kNsPerSecond);
    world_.Settle();
    Hear();
    EXPECT_TRUE(world_.tables().jobs.empty() && world_.tables().slots.empty() &&
                world_.jobs().waiting().empty());
    EXPECT_EQ(world_.pool().free_bytes(), world_.pool().total_bytes());
    EXPECT_EQ(world_.pool().largest_free_bytes(), world_.pool().total_bytes());
  }

 public:
  uint64_t grants_ = 0;
  uint64_t shared_ = 0;  // times that two jobs held one frozen chunk
  uint64_t demotions_ = 0, dropped_ = 0;

 private:
  SplitMix64 random_;
  ServeWorld world_;
  std::vector<Somebody> people_;
};

TEST(Admission, SumsOfTheLedgerAreTheBytesOfTheTableAfterEveryEvent) {
  uint64_t grants = 0, shared = 0, demotions = 0, dropped = 0;
  for (uint64_t seed = 0; seed < kSeeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Crowd crowd(seed);
    crowd.Run(40);
    grants += crowd.grants_;
    shared += crowd.shared_;
    demotions += crowd.demotions_;
    dropped += crowd.dropped_;
  }
  std::printf("%llu seeds: %llu demotions, %llu dropped\n", static_cast<unsigned long long>(kSeeds),
              static_cast<unsigned long long>(demotions), static_cast<unsigned long long>(dropped));
  EXPECT_GT(grants, 2 * kSeeds) << "the crowd does come in";
  EXPECT_GT(shared, kSeeds);
  if (kSeeds < 1000) return;  // too few for what comes seldom
  EXPECT_GT(demotions, kSeeds / 80);
  EXPECT_GT(dropped, kSeeds / 80);
}

}  // namespace admission_test
}  // namespace tidepool::memserver

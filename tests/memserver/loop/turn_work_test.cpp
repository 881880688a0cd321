// What a turn of the loop does for a job with many chunks: chunks that it looks at are counted, and
// no turn looks at all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/point.h"
#include "memserver/control/whole_order.h"
#include "memserver/jobs/limits.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/point_hits.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {
namespace turn_work_test {

constexpr uint32_t kChunks = 2 * kSnapshotChunksPerTurn + 100;
constexpr uint64_t kElements = 16;
// Bounds everything else in a turn: requests, copies, work.
constexpr uint64_t kFew = 2 * kRequestsPerTurn;

shm::JobSpec Large(const std::string& name, uint32_t chunks = kChunks) {
  shm::JobSpec spec = MakeSpec({.name = name, .chunks = chunks, .rcache_bytes = 4096});
  spec.optimizer.rule = OptimizerRule::kSgd;
  spec.optimizer.momentum = 0;
  spec.parameters.clear();
  for (ChunkId id = 0; id < chunks; ++id) {
    spec.chunks[id].elements = kElements;
    spec.parameters.push_back({"w" + std::to_string(id), {kElements}, id, 0, 0, kElements});
  }
  return spec;
}

// One rank; the test does the workers' work, so that a turn has only its own.
class WorkOfATurn : public ::testing::Test {
 protected:
  WorkOfATurn() : spec_(Large("large")), world_(Options(spec_)) {
    rank_ = world_.Join(spec_, 0);
    EXPECT_NE(rank_, nullptr);
    if (rank_ == nullptr) return;
    for (ChunkId id = 0; id < kChunks; ++id) Answered(rank_->Put(id, 0, kElements, 0));
  }
  static WorldOptions Options(const shm::JobSpec& spec) {
    WorldOptions options;
    options.pool_bytes = shm::StateBytesOf(spec).total() + 8 * kMiB;
    options.loop.run_inline_work = false;
    return options;
  }

  const Job& job() { return *world_.tables().jobs.front(); }
  void Answered(uint64_t counter) { EXPECT_EQ(world_.Await(rank_.get(), counter).error, 0U); }
  void Work() {
    for (world_.Settle(); world_.team().waiting() > 0; world_.Settle()) world_.team().RunOne(0);
  }
  void Submit(Version version) {
    for (ChunkId id = 0; id < kChunks; ++id) {
      Answered(rank_->Submit({id, 0, kElements, 0, version, 0}));
      while (world_.team().waiting() > 0) world_.team().RunOne(0);
    }
    Work();
  }
  // The most that any turn looked at until the loop was at rest.
  uint64_t MostLooks() {
    uint64_t most = 0;
    for (int idle = 0; idle < 2 && !world_.tables().jobs.empty();) {
      const uint64_t before = job().states->looks();
      idle = world_.loop().Turn() ? 0 : idle + 1;
      if (!world_.tables().jobs.empty()) most = std::max(most, job().states->looks() - before);
    }
    return most;
  }

  const shm::JobSpec spec_;
  ServeWorld world_;
  std::unique_ptr<FakeRank> rank_;
};

TEST_F(WorkOfATurn, ASnapshotIsBuiltInSlices) {
  world_.Post(SnapshotWanted{});
  EXPECT_LE(MostLooks(), kSnapshotChunksPerTurn + kFew);
  const auto ready = world_.TakeReply<SnapshotReady>();
  ASSERT_TRUE(ready);
  ASSERT_EQ(ready->snapshot->jobs.size(), 1U);
  const JobRow& row = ready->snapshot->jobs.front();
  ASSERT_EQ(row.chunks.size(), kChunks);
  for (const ChunkRow& chunk : row.chunks) {
    EXPECT_EQ(chunk.state, ChunkState::kResident);
    EXPECT_EQ(chunk.elements, kElements);
  }
}

TEST_F(WorkOfATurn, ASnapshotIsOfTheTurnInWhichItIsComplete) {
  world_.Post(SnapshotWanted{});
  world_.loop().Turn();
  EXPECT_FALSE(world_.TakeReply<SnapshotReady>()) << "it is not complete";
  Answered(rank_->Fetch(kChunks - 1, 0, kElements, 0, 0));
  Answered(rank_->Fetch(0, 0, kElements, 0, 0));
  world_.Settle();
  const auto ready = world_.TakeReply<SnapshotReady>();
  ASSERT_TRUE(ready);
  const JobRow& row = ready->snapshot->jobs.front();
  EXPECT_EQ(row.chunks[0].fetches, 0U) << "it was looked at before";
  EXPECT_EQ(row.chunks[kChunks - 1].fetches, 1U);
  EXPECT_EQ(row.sessions.front().bytes_h2d, 2 * kElements * sizeof(float));
  EXPECT_FALSE(world_.TakeReply<SnapshotReady>()) << "one question, one answer";
}

TEST_F(WorkOfATurn, AQuestionThatComesMeanwhileIsAnsweredByANewSnapshot) {
  world_.Post(SnapshotWanted{});
  world_.loop().Turn();
  Answered(rank_->Fetch(0, 0, kElements, 0, 0));
  world_.Post(SnapshotWanted{});
  world_.Settle();
  const auto first = world_.TakeReply<SnapshotReady>(), second = world_.TakeReply<SnapshotReady>();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(second->snapshot->jobs.front().chunks[0].fetches, 1U);
}

TEST_F(WorkOfATurn, AJobThatComesMeanwhileIsInTheSnapshotAsItIsInTheSums) {
  world_.Post(SnapshotWanted{});
  world_.loop().Turn();
  const auto other = world_.Join(Large("other", 3), 0);
  ASSERT_NE(other, nullptr);
  world_.Settle();

  const auto ready = world_.TakeReply<SnapshotReady>();
  ASSERT_TRUE(ready);
  uint64_t used = 0;
  for (const JobRow& row : ready->snapshot->jobs) used += row.pool_bytes;
  EXPECT_EQ(used, ready->snapshot->pool_used);
}

TEST_F(WorkOfATurn, AJobThatEndsMeanwhileIsNotInTheSnapshot) {
  world_.Post(SnapshotWanted{});
  world_.loop().Turn();
  world_.Leave(*rank_);
  world_.Settle();
  const auto ready = world_.TakeReply<SnapshotReady>();
  ASSERT_TRUE(ready);
  EXPECT_TRUE(ready->snapshot->jobs.empty());
  EXPECT_EQ(ready->snapshot->pool_used, 0U);
}

TEST_F(WorkOfATurn, AStepIsSealedWithoutALookAtEachChunk) {
  for (Version version = 0; version < 2; ++version) {
    Submit(version);
    for (const ChunkId id : {ChunkId{0}, kChunks - 1})
      EXPECT_EQ(job().states->chunk(id).state, ChunkState::kComplete);
    rank_->EndStep(version, 0.1F);
    EXPECT_LE(MostLooks(), kFew);
    EXPECT_EQ(job().states->sealed_version(), version + 1);
    for (const ChunkId id : {ChunkId{1000}, kChunks - 1})
      EXPECT_EQ(job().states->chunk(id).state, ChunkState::kUpdateDue);
    Work();
    for (const ChunkId id : {ChunkId{0}, kChunks - 1})
      EXPECT_EQ(job().states->chunk(id).state, ChunkState::kResident);
    while (rank_->Take()) {
    }
  }
}

TEST_F(WorkOfATurn, AStepIsDroppedAndARankLeavesWithoutALookAtEachChunk) {
  Answered(rank_->Fetch(7, 0, kElements, 0, 0));
  Submit(0);
  EXPECT_EQ(job().intake.reach().chunks, kChunks);
  world_.Lose(*rank_);
  EXPECT_LE(MostLooks(), kFew);
}

TEST_F(WorkOfATurn, ASaveIsListedByWhoeverReadsForIt) {
  const PointHits listed("server.save_listed");
  world_.Post(SaveWeights{rank_->connection(), UniqueFd(), "weights", 0});
  EXPECT_LE(MostLooks(), kFew);
  EXPECT_EQ(listed.count(), 0U);
  const std::vector<SaveRequest> saves = world_.TakeSaves();
  ASSERT_EQ(saves.size(), 1U);
  EXPECT_EQ(listed.count(), 1U);
  ASSERT_EQ(saves.front().tensors.size(), spec_.parameters.size());
  EXPECT_EQ(saves.front().tensors.back().name, spec_.parameters.back().name);
  const auto* master =
      reinterpret_cast<const float*>(job().states->chunk(kChunks - 1).planes.master);
  EXPECT_EQ(saves.front().tensors.back().data, master);
}

TEST_F(WorkOfATurn, AScheduleIsTakenAsItIs) {
  std::vector<ChunkId> declared{5, 3, 5};
  const auto order = WholeOrder(declared, kChunks);
  ASSERT_EQ(order->size(), kChunks);
  EXPECT_EQ((*order)[0], 5U);
  EXPECT_EQ((*order)[1], 3U);
  EXPECT_EQ((*order)[2], 0U);
  world_.Post(DeclareSchedule{rank_->connection(), order});
  EXPECT_LE(MostLooks(), kFew);
  EXPECT_EQ(order.use_count(), 2) << "the job has it, and no copy";
}

// A job comes, is made and goes; no turn goes through all of its chunks.
class MakingOfAJob : public ::testing::Test {
 protected:
  MakingOfAJob() : spec_(Large("large")), world_(Options()) {}
  WorldOptions Options() const {
    WorldOptions options = WithLease();
    options.pool_bytes = shm::StateBytesOf(spec_).total() + 8 * kMiB;
    return options;
  }

  const Job& job() { return *world_.tables().jobs.front(); }
  bool IsOpen() { return !world_.tables().jobs.empty() && job().phase == JobPhase::kOpen; }
  void Turns(int turns) {
    for (int i = 0; i < turns; ++i) world_.loop().Turn();
  }
  // Begins to make the job; its first rank attaches after so many turns, where it ever does.
  std::unique_ptr<FakeRank> Begin(int turns_before) {
    world_.Reserve(spec_, 0);
    Turns(std::max(1, turns_before));
    const auto granted = world_.TakeReply<ReserveGranted>();
    EXPECT_TRUE(granted) << "memory is zeroed while the chunks are laid out";
    return granted && turns_before > 0 ? world_.Attach(*granted, 0) : nullptr;
  }
  void ExpectNothingLeft() {
    EXPECT_TRUE(world_.tables().jobs.empty());
    EXPECT_EQ(world_.pool().free_bytes(), world_.pool().total_bytes());
  }

  const shm::JobSpec spec_;
  ServeWorld world_;
};

TEST_F(MakingOfAJob, ItIsLaidOutAndRecordedInSlices) {
  world_.Reserve(spec_, 0);
  uint64_t looks = 0, written = 0;
  std::unique_ptr<FakeRank> rank;
  int making = 0;
  for (; making < 1000 && !IsOpen(); ++making) {
    ASSERT_TRUE(world_.loop().Turn()) << "nothing would wake the loop";
    const JobStates& states = *job().states;
    EXPECT_LE(states.looks() - looks, kTableRowsPerTurn + kFew);
    EXPECT_LE(states.records().written() - written, kRecordBytesPerTurn + kPageBytes);
    looks = states.looks();
    written = states.records().written();
    EXPECT_LE(states.placement().runs().size(), 2U) << "what is taken and given back in one turn";
    if (const auto granted = world_.TakeReply<ReserveGranted>()) {
      EXPECT_FALSE(states.laid_out());
      EXPECT_EQ(granted->to_zero.size(), 1U);
      rank = world_.Attach(*granted, 0);
    }
  }
  EXPECT_TRUE(IsOpen());
  EXPECT_EQ(looks, kChunks);
  EXPECT_GE(written, kChunks * shm::kChunkRecordBytes);
  EXPECT_GE(making, static_cast<int>(kChunks / kTableRowsPerTurn + written / kRecordBytesPerTurn));

  ASSERT_NE(rank, nullptr);
  for (const ChunkId id : {ChunkId{0}, ChunkId{5000}, kChunks - 1}) {
    EXPECT_EQ(world_.Await(rank.get(), rank->Put(id, 0, kElements, 0)).error, 0U);
    const Chunk& chunk = job().states->chunk(id);
    EXPECT_EQ(chunk.version, 0U);
    EXPECT_EQ(spec_.parameters[chunk.first_parameter].chunk, id);
    EXPECT_EQ(job().states->runs(chunk).size(), 1U);
  }
  world_.Lose(*rank);
  world_.Settle();
  ExpectNothingLeft();
}

TEST_F(MakingOfAJob, AClientThatGoesAwayMeanwhileLeavesNothingBehind) {
  for (int turns = 0; turns < 16; ++turns) {
    const auto rank = Begin(turns % 4);
    Turns(turns);
    const ConnectionId connection = world_.tables().slots.front()->connection;
    world_.Post(ConnectionLost{connection, "it was killed"});
    world_.Settle();
    ExpectNothingLeft();
    world_.TakeAllReplies();
  }
}

TEST_F(MakingOfAJob, AServerThatIsKilledMeanwhileLeavesNothingOfIt) {
  for (int turns = 0; turns < 24; ++turns) {
    const auto rank = Begin(turns % 3);
    Turns(turns);
    const bool open = IsOpen();
    world_.Restart();
    ASSERT_TRUE(world_.recovered().ok());
    ASSERT_EQ(world_.tables().jobs.empty(), !open) << turns;
    if (open) {
      EXPECT_EQ(job().states->chunk(kChunks - 1).elements, kElements);
      world_.clock().Advance(2 * kLeaseNs);
    }
    world_.Settle();
    ExpectNothingLeft();
  }
}

TEST_F(MakingOfAJob, ThoseThatAreMadeTogetherShareATurn) {
  WorldOptions options = Options();
  options.pool_bytes *= 3;
  ServeWorld world(options);
  for (const char* name : {"one", "two", "three"}) world.Reserve(Large(name), 0);
  const auto looks = [&world] {
    uint64_t sum = 0;
    for (const auto& one : world.tables().jobs) sum += one->states->looks();
    return sum;
  };
  for (uint64_t before = 0; before < 3 * kChunks; before = looks()) {
    ASSERT_TRUE(world.loop().Turn());
    ASSERT_LE(looks() - before, kTableRowsPerTurn + kFew);
  }
  for (const auto& one : world.tables().jobs) EXPECT_TRUE(one->states->laid_out());
}

TEST_F(MakingOfAJob, OtherRanksAndSnapshotsMeetItAsItWillBe) {
  ASSERT_EQ(Begin(0), nullptr);
  world_.Post(SnapshotWanted{});
  Turns(1);
  EXPECT_FALSE(job().states->laid_out());
  world_.Settle();
  const auto ready = world_.TakeReply<SnapshotReady>();
  ASSERT_TRUE(ready);
  const JobRow& row = ready->snapshot->jobs.front();
  ASSERT_EQ(row.chunks.size(), kChunks);
  for (const ChunkRow& chunk : row.chunks) {
    EXPECT_EQ(chunk.state, ChunkState::kEmpty);
    EXPECT_EQ(chunk.elements, kElements);
    EXPECT_EQ(chunk.bytes, 2 * kElements * sizeof(float));
  }
  EXPECT_EQ(ready->snapshot->pool_used, job().states->pool_bytes());
}

// The states of a job without ranks go to NVMe: no turn goes through all of its chunks.
class DemotionOfAJob : public ::testing::Test {
 protected:
  DemotionOfAJob() : spec_(Large("large", kMoved)), world_(Options(&spec_)) {
    const auto rank = world_.Join(spec_, 0);
    EXPECT_NE(rank, nullptr);
    for (ChunkId id = 0; rank != nullptr && id < kMoved; ++id)
      EXPECT_EQ(world_.Await(rank.get(), rank->Put(id, 0, kElements, 0)).error, 0U);
    world_.AwaitWeights("large");
    world_.Lose(*rank);
    world_.Settle();
  }
  static WorldOptions Options(shm::JobSpec* spec) {
    spec->optimizer.momentum = 0.9;
    WorldOptions options = WithLease();
    options.pool_bytes = shm::StateBytesOf(*spec).total() + 8 * kMiB;
    options.nvme_directories = 2;
    options.nvme_bytes = 128 * kMiB;
    return options;
  }

  const JobStates& states() { return *world_.tables().FindJob("large")->states; }
  bool moving() { return world_.jobs().demotion().active(); }
  // Turns until it lies on NVMe for good, or has to be followed further; the most looks of one.
  uint64_t MoveUntil(bool followed) {
    uint64_t most = 0;
    EXPECT_TRUE(world_.Command(EvictJob{"large"}).ok());
    for (int turns = 0; turns < 100'000 && moving(); ++turns) {
      const uint64_t before = states().looks();
      world_.loop().Turn();
      most = std::max(most, states().looks() - before);
      if (!followed && states().is_moving_out()) break;
    }
    return most;
  }

  static constexpr uint32_t kMoved = 2 * kMovedRowsPerTurn + 100;
  shm::JobSpec spec_;
  ServeWorld world_;
};

TEST_F(DemotionOfAJob, IsBegunAndFollowedInSlices) {
  const uint64_t movable = states().movable_bytes();
  std::vector<Extent> runs;
  states().placement().AddMovable(&runs);
  EXPECT_EQ(runs.size(), 1U) << "what goes back to the pool lies together";
  EXPECT_LE(MoveUntil(true), kMovedRowsPerTurn + kFew);
  EXPECT_EQ(states().demoted(), kMoved);
  EXPECT_GE(world_.pool().largest_free_bytes(), movable) << "others find it in one hole";
  for (const ChunkId id : {ChunkId{0}, ChunkId{5000}, kMoved - 1}) {
    EXPECT_TRUE(states().chunk(id).spilled);
    EXPECT_EQ(states().chunk(id).planes.momentum, nullptr);
  }
  EXPECT_EQ(states().table().pieces_spilled(), kMoved);

  const auto again = world_.Join(spec_, 0);
  ASSERT_NE(again, nullptr);
  for (const ChunkId id : {ChunkId{0}, ChunkId{5000}, kMoved - 1})
    EXPECT_EQ(world_.Await(again.get(), again->Fetch(id, 0, kElements, 0, 0)).error, 0U);
}

TEST_F(DemotionOfAJob, ARankThatComesMeanwhileIsToldToComeAgain) {
  MoveUntil(false);
  ASSERT_TRUE(states().is_moving_out());
  world_.Reserve(spec_, 0);
  world_.loop().Turn();
  const auto refused = world_.TakeReply<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->why.id(), ErrorId::kNotReady) << "clients wait and try again";
  world_.Settle();
  EXPECT_EQ(states().demoted(), kMoved);
  EXPECT_NE(world_.Join(spec_, 0), nullptr);
}

TEST_F(DemotionOfAJob, AServerThatIsKilledMeanwhileHasMovedIt) {
  MoveUntil(false);
  ASSERT_TRUE(states().is_moving_out());
  world_.Restart();
  ASSERT_TRUE(world_.recovered().ok());
  EXPECT_EQ(states().demoted(), kMoved);
  EXPECT_TRUE(states().chunk(kMoved - 1).spilled);
  EXPECT_EQ(states().pool_bytes() + world_.pool().free_bytes(), world_.pool().total_bytes());
}

// Most chunks lie on the host: whoever looks for those that do not goes on in the next turn.
TEST(WorkOfATurnOnNvme, AScrubWalksInSlices) {
  shm::JobSpec spec = Large("scrubbed");
  spec.optimizer.momentum = 0.9;
  const uint64_t all = shm::StateBytesOf(spec).total();
  ServeWorld world(
      {.pool_bytes = all - 4 * kPageBytes, .nvme_directories = 1, .nvme_bytes = 16 * kMiB});
  const auto rank = world.Join(spec, 0);
  ASSERT_NE(rank, nullptr);
  const JobStates& states = *world.tables().jobs.front()->states;
  const uint64_t spilled = states.chunks_spilled();
  ASSERT_GT(spilled, 0U);
  ASSERT_LT(spilled, 16U);
  EXPECT_EQ(states.table().pieces_spilled(), spilled);
  for (ChunkId id = 0; id < kChunks; ++id)
    EXPECT_EQ(world.Await(rank.get(), rank->Put(id, 0, kElements, 0)).error, 0U);
  world.AwaitWeights("scrubbed");
  world.Settle();

  const uint64_t before_all = states.looks();
  EXPECT_TRUE(world.Scrub().ok());
  EXPECT_LE(states.looks() - before_all, Scrub::kChunksPerTurn + kFew) << "in its first turn";
  const auto row = [&world] { return world.tables().scrub.Row(world.clock().NowNs()); };
  while (row().state == ScrubState::kRunning) {
    const uint64_t before = states.looks();
    world.loop().Turn();
    ASSERT_LE(states.looks() - before, Scrub::kChunksPerTurn + kFew);
    world.clock().Advance(kNsPerMs);
  }
  EXPECT_EQ(row().pieces_checked, spilled);
  EXPECT_EQ(row().pieces, spilled);
  EXPECT_EQ(row().damaged, 0U);
}

// States on NVMe: the queue that moves them is told of a step in slices.
TEST(WorkOfATurnOnNvme, AStepIsHandedOutInSlices) {
  constexpr uint32_t kSpilled = 2 * kHandedOutPerTurn;
  shm::JobSpec spec = Large("spilled", kSpilled);
  spec.optimizer.momentum = 0.9;
  WorldOptions options{.pool_bytes = shm::StateBytesOf(spec).total() + 8 * kMiB,
                       .nvme_directories = 1,
                       .nvme_bytes = 256 * kMiB};
  options.loop.live.states_on = StatesOn::kNvme;
  ServeWorld world(options);
  const auto rank = world.Join(spec, 0);
  ASSERT_NE(rank, nullptr);
  for (ChunkId id = 0; id < kSpilled; ++id)
    EXPECT_EQ(world.Await(rank.get(), rank->Put(id, 0, kElements, 0)).error, 0U);
  world.AwaitWeights("spilled");
  for (ChunkId id = 0; id < kSpilled; ++id)
    EXPECT_EQ(world.Await(rank.get(), rank->Submit({id, 0, kElements, 0, 0, 0})).error, 0U);
  world.Settle();

  const JobStates& states = *world.tables().jobs.front()->states;
  ASSERT_EQ(states.chunks_spilled(), kSpilled);
  rank->EndStep(0, 0.1F);
  uint64_t most = 0;
  for (int turn = 0; turn < 8; ++turn) {
    const uint64_t before = states.looks();
    world.loop().Turn();
    most = std::max(most, states.looks() - before);
  }
  EXPECT_GT(most, kHandedOutPerTurn) << "nothing was sealed";
  EXPECT_LE(most, 2 * kHandedOutPerTurn + 4 * kFew)
      << "each is looked at when it is handed out, and by the queue";
  world.Settle();
  for (ChunkId id = 0; id < kSpilled; ++id) ASSERT_EQ(states.chunk(id).version, 1U);
}

}  // namespace turn_work_test
}  // namespace tidepool::memserver

// How jobs and ranks come and go: joining, refusals, death, lease, goodbye, saves, stopping.
#include "memserver/jobs/job_desk.h"
#include "shm/spec/state_bytes.h"

#include <cstring>

#include <gtest/gtest.h>
#include "tests/fakes/slow_device.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace job_desk_test {

// A trained job of two ranks at version 2.
struct Trained {
  explicit Trained(const WorldOptions& options, SpecOptions spec = {.world = 2})
      : world(options), trainer(&world, MakeSpec(spec)) {
    EXPECT_TRUE(trainer.JoinAll());
    trainer.PutWeights(1);
    trainer.Step({.seed = 1});
    trainer.Step({.seed = 2});
  }
  ServeWorld world;
  SmallTrainer trainer;
};

Status Refusal(ServeWorld* world) {
  const auto refused = world->TakeReply<Refused>();
  return refused ? refused->why : Status();
}

bool AllBack(ServeWorld* world) {
  world->Settle();
  return world->pool().free_bytes() == world->pool().total_bytes() &&
         world->tables().jobs.empty() && world->tables().slots.empty();
}

TEST(Joining, IsRefusedToOthersWithTheReason) {
  ServeWorld world;
  const shm::JobSpec spec = MakeSpec({.world = 2});
  auto first = world.Join(spec, 0);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(world.Join(spec, 0), nullptr);
  EXPECT_EQ(Refusal(&world).id(), ErrorId::kRankTaken);
  EXPECT_EQ(world.Join(spec, 2), nullptr);
  EXPECT_EQ(Refusal(&world).id(), ErrorId::kRankCountMismatch);
  EXPECT_EQ(world.Join(MakeSpec({.world = 3}), 1), nullptr);
  EXPECT_EQ(Refusal(&world).id(), ErrorId::kRankCountMismatch);
  EXPECT_EQ(world.Join(MakeSpec({.world = 2, .chunks = 3}), 1), nullptr);
  const Status differs = Refusal(&world);
  EXPECT_EQ(differs.id(), ErrorId::kJobMismatch);
  EXPECT_NE(differs.what().find("number of chunks 2, now 3"), std::string::npos) << differs.what();
  EXPECT_EQ(world.Join(spec, 1, /*uid=*/1001), nullptr);
  EXPECT_EQ(Refusal(&world).id(), ErrorId::kNotOwner);
  EXPECT_NE(world.Join(spec, 1), nullptr);
}

// A user who is refused at will writes the log no fuller than it may.
TEST(Joining, LinesAboutAUsersRanksAreBounded) {
  const auto lines = [](const std::string& about, uint64_t after) {
    uint64_t count = 0;
    for (const LoggedLine& line : RecentLines(after, kLoggedLinesKept))
      count += line.json.find(about) != std::string::npos ? 1 : 0;
    return count;
  };
  ServeWorld world;
  const shm::JobSpec spec = MakeSpec({.world = 2});
  const auto first = world.Join(spec, 0);
  ASSERT_NE(first, nullptr);
  const auto before = RecentLines(0, kLoggedLinesKept);
  const uint64_t last = before.empty() ? 0 : before.back().number;
  for (int64_t i = 0; i < 2 * UserLogLimiter::kLinesAtOnce; ++i)
    EXPECT_EQ(world.Join(spec, 0), nullptr);
  EXPECT_LE(lines("rank refused", last), static_cast<uint64_t>(UserLogLimiter::kLinesAtOnce) + 8)
      << "some are earned meanwhile";
  EXPECT_EQ(world.Join(spec, 1, /*uid=*/1001), nullptr);
  EXPECT_EQ(lines("user 1000", last), 1U) << "another user's refusal is told";
}

TEST(Joining, APoolOfExactlyTheJobsSizeIsEnoughAndOnePageLessIsNot) {
  const shm::JobSpec spec = MakeSpec({.world = 2, .dtype = DType::kBF16, .micro_batches = 2});
  const uint64_t bytes = shm::StateBytesOf(spec).total();
  ServeWorld exact({.pool_bytes = bytes});
  EXPECT_NE(exact.Join(spec, 0), nullptr);
  EXPECT_EQ(exact.pool().free_bytes(), 0u);
  ServeWorld short_by_a_page({.pool_bytes = bytes - kPageBytes});
  EXPECT_EQ(short_by_a_page.Join(spec, 0), nullptr);
  const Status why = Refusal(&short_by_a_page);
  EXPECT_EQ(why.id(), ErrorId::kPoolFull);
  EXPECT_NE(why.what().find(std::to_string(bytes)), std::string::npos) << why.what();
}

TEST(Joining, ASecondJobIsToldWhoHoldsThePool) {
  const shm::JobSpec spec = MakeSpec({.name = "first"});
  ServeWorld world({.pool_bytes = shm::StateBytesOf(spec).total() * 3 / 2});
  auto first = world.Join(spec, 0);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(world.Join(MakeSpec({.name = "second"}), 0), nullptr);
  EXPECT_NE(Refusal(&world).Format().find("first holds"), std::string::npos);
  world.Leave(*first);
  world.Settle();
  EXPECT_NE(world.Join(MakeSpec({.name = "second"}), 0), nullptr);
}

TEST(Joining, LimitsOfRcacheAndSessionsHold) {
  WorldOptions options;
  options.loop.rcache_limit = 96 * kKiB;
  ServeWorld world(options);
  EXPECT_NE(world.Join(MakeSpec({.name = "a"}), 0), nullptr);
  EXPECT_EQ(world.Join(MakeSpec({.name = "b"}), 0), nullptr);
  EXPECT_EQ(Refusal(&world).id(), ErrorId::kRcacheRefused);
  EXPECT_NE(world.Join(MakeSpec({.name = "c", .rcache_bytes = 32 * kKiB}), 0), nullptr);

  options.loop.limits.sessions_max = 1;
  ServeWorld one(options);
  EXPECT_EQ(one.Join(MakeSpec({.name = "a", .world = 2, .rcache_bytes = 4096}), 0), nullptr)
      << "the second rank would have no place";
  EXPECT_EQ(Refusal(&one).id(), ErrorId::kTooManySessions);
  EXPECT_NE(one.Join(MakeSpec({.name = "b", .rcache_bytes = 4096}), 0), nullptr);
}

// Its copies on a GPU may end when nobody takes their answers any more.
TEST(Leaving, ARankThatIsLeavingAlreadyCannotBreakTheProtocol) {
  ServeWorld world;
  const auto rank = world.Join(MakeSpec({}), 0);
  ASSERT_NE(rank, nullptr);
  SessionSlot* slot = world.tables().slots.front().get();
  slot->leaving = SessionSlot::Departure{Leaving::kLost, Status(ErrorId::kSessionEnded, "lost")};
  slot->violation = "its completion ring is full";
  world.Settle();  // a turn comes to its end
  EXPECT_EQ(world.tables().counters.sessions_ended_badly, 0u);
}

TEST(Leaving, AFetchOfWeightsThatNobodyPutsAnyMoreIsAnswered) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.world = 2}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.rank(1).Fetch(0, 0, 192, 0, 1);
  world.Settle();
  EXPECT_FALSE(trainer.rank(1).Take().has_value());
  world.Lose(trainer.rank(0));
  world.Settle();
  const auto answer = trainer.rank(1).Take();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->error, static_cast<uint32_t>(ErrorId::kPeerLost));
}

TEST(Leaving, AFetchOfAChunkThatIsThereWhileOthersNeverComeIsAnswered) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.world = 2}));
  ASSERT_TRUE(trainer.JoinAll());
  world.Await(&trainer.rank(0), trainer.rank(0).Put(0, 0, 96, 0));
  world.Await(&trainer.rank(1), trainer.rank(1).Put(0, 96, 96, 0));
  trainer.rank(1).Fetch(0, 0, 192, 0, 0);
  world.Settle();
  EXPECT_FALSE(trainer.rank(1).Take().has_value()) << "the other chunk's weights are not in";
  world.Lose(trainer.rank(0));
  world.Settle();
  const auto answer = trainer.rank(1).Take();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->error, static_cast<uint32_t>(ErrorId::kPeerLost));
}

TEST(Joining, WaitsUntilTheFirstRanksMemoryIsZeroed) {
  ServeWorld world;
  const shm::JobSpec spec = MakeSpec({.world = 2});
  world.Reserve(spec, 0);
  world.Reserve(spec, 1);
  world.Settle();
  const auto first = world.TakeReply<ReserveGranted>();
  const auto second = world.TakeReply<ReserveGranted>();
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(first->to_zero.empty());
  EXPECT_TRUE(second->to_zero.empty());
  auto rank1 = world.Attach(*second, 1);
  world.Settle();
  EXPECT_FALSE(world.TakeReply<Attached>());
  auto rank0 = world.Attach(*first, 0);
  world.Settle();
  EXPECT_EQ(world.TakeReply<Attached>()->connection, rank0->connection());
  EXPECT_EQ(world.TakeReply<Attached>()->connection, rank1->connection());
}

TEST(Joining, TheZeroingRanksDeathSendsTheOthersAway) {
  ServeWorld world;
  const shm::JobSpec spec = MakeSpec({.world = 2});
  const ConnectionId first = world.Reserve(spec, 0);
  const ConnectionId second = world.Reserve(spec, 1);
  world.Settle();
  world.Post(ConnectionLost{first, "killed"});
  world.Settle();
  const auto over = world.TakeReply<SessionOver>();
  ASSERT_TRUE(over);
  EXPECT_EQ(over->connection, second);
  EXPECT_EQ(over->why.id(), ErrorId::kPeerLost);
  EXPECT_TRUE(AllBack(&world));
}

TEST(Joining, AFormerJobsBytesAreNeverSeen) {
  ServeWorld world;
  {
    SmallTrainer trainer(&world, MakeSpec({.name = "secret"}));
    ASSERT_TRUE(trainer.JoinAll());
    trainer.PutWeights(9);
    trainer.LeaveAll();
  }
  auto rank = world.Join(MakeSpec({.name = "curious"}), 0);
  ASSERT_NE(rank, nullptr);
  const Job& job = *world.tables().jobs.front();
  for (const Extent& extent : job.states->extents().subspan(1)) {  // all but the records
    for (uint64_t i = 0; i < extent.bytes; ++i) ASSERT_EQ(extent.data[i], std::byte{0});
  }
}

TEST(Leaving, GoodbyeOfAllRanksRemovesTheJobAtOnceEvenWithALease) {
  Trained trained(WithLease());
  trained.trainer.LeaveAll();
  EXPECT_TRUE(AllBack(&trained.world));
}

TEST(Leaving, ADeathDetachesTheJobAndTheLeaseEndsIt) {
  Trained trained(WithLease());
  trained.world.Lose(trained.trainer.rank(1));
  trained.world.Settle();
  EXPECT_EQ(trained.world.TakeReply<PeerGone>()->connection, trained.trainer.rank(0).connection());
  trained.world.Lose(trained.trainer.rank(0));
  trained.world.Settle();
  EXPECT_EQ(trained.world.tables().jobs.size(), 1u);
  trained.world.clock().Advance(kLeaseNs - 1);
  EXPECT_FALSE(AllBack(&trained.world));
  trained.world.clock().Advance(1);
  EXPECT_TRUE(AllBack(&trained.world));
}

TEST(Leaving, GoodbyesOfTwoRunsEndTheJobTogether) {
  Trained trained(WithLease());
  trained.world.Leave(trained.trainer.rank(1));
  trained.world.Settle();
  trained.world.Lose(trained.trainer.rank(0));
  EXPECT_FALSE(AllBack(&trained.world));
  const auto again = trained.world.Join(trained.trainer.spec(), 0);
  ASSERT_NE(again, nullptr);
  trained.world.Leave(*again);
  EXPECT_TRUE(AllBack(&trained.world));
}

TEST(Leaving, WithoutALeaseADeathRemovesTheJob) {
  Trained trained({});
  trained.world.Lose(trained.trainer.rank(0));
  trained.world.Lose(trained.trainer.rank(1));
  EXPECT_TRUE(AllBack(&trained.world));
}

TEST(Leaving, AHalfLoadedJobIsNotKept) {
  ServeWorld world(WithLease());
  SmallTrainer trainer(&world, MakeSpec({.world = 2}));
  ASSERT_TRUE(trainer.JoinAll());
  world.Await(&trainer.rank(0), trainer.rank(0).Put(0, 0, 96, 0));
  world.Lose(trainer.rank(0));
  world.Lose(trainer.rank(1));
  EXPECT_TRUE(AllBack(&world));
}

TEST(Leaving, SurvivorsGetPeerLostAndMayStillReadTheSealedVersion) {
  Trained trained(WithLease());
  FakeRank& survivor = trained.trainer.rank(0);
  const uint64_t ahead = survivor.Fetch(0, 0, 96, 0, 3);
  trained.trainer.Submit({.seed = 3});
  const uint64_t end = survivor.EndStep(2, 0.01F);
  trained.world.Settle();
  trained.world.Lose(trained.trainer.rank(1));
  EXPECT_EQ(trained.world.Await(&survivor, end).error, static_cast<uint32_t>(ErrorId::kPeerLost));
  EXPECT_EQ(trained.world.Await(&survivor, ahead).error, static_cast<uint32_t>(ErrorId::kPeerLost));
  EXPECT_EQ(trained.world.Await(&survivor, survivor.Fetch(0, 0, 96, 0, 2)).error, 0u);
  const uint64_t late = survivor.Submit({0, 0, 96, 0, 2, 0});
  EXPECT_EQ(trained.world.Await(&survivor, late).error, static_cast<uint32_t>(ErrorId::kPeerLost));
}

TEST(Leaving, ANewRunMayJoinOnlyWhenTheOldOneIsGone) {
  Trained trained(WithLease());
  trained.world.Lose(trained.trainer.rank(1));
  trained.world.Settle();
  EXPECT_EQ(trained.world.Join(trained.trainer.spec(), 1), nullptr);
  EXPECT_EQ(Refusal(&trained.world).id(), ErrorId::kRankTaken);
  trained.world.Lose(trained.trainer.rank(0));
  trained.world.Settle();
  EXPECT_NE(trained.world.Join(trained.trainer.spec(), 1), nullptr);
}

TEST(Rejoining, GoesOnAtTheSealedVersionWithTheStepsRecord) {
  Trained trained(WithLease());
  trained.trainer.Submit({.seed = 77});  // of a step that is never sealed
  trained.world.Lose(trained.trainer.rank(0));
  trained.world.Lose(trained.trainer.rank(1));
  trained.world.Settle();
  while (trained.world.TakeReply<Attached>()) {
  }
  auto rank = trained.world.Join(trained.trainer.spec(), 0);
  ASSERT_NE(rank, nullptr);
  const auto attached = trained.world.TakeReply<Attached>();
  ASSERT_TRUE(attached);
  EXPECT_TRUE(attached->weights_ready);
  EXPECT_EQ(attached->sealed_version, 2u);
  EXPECT_EQ(attached->data_cursor, 1000u);
  EXPECT_EQ(attached->random_state, 8u);
  trained.world.Lose(*rank);
  trained.world.Settle();
  ASSERT_TRUE(trained.trainer.JoinAll());
  trained.trainer.Step({.seed = 3});
  EXPECT_EQ(trained.trainer.Compare(2e-6), "");
}

TEST(Rejoining, ASealedStepIsFinishedWithoutItsRanks) {
  WorldOptions options = WithLease();
  options.loop.run_inline_work = false;
  ServeWorld world(options);
  SmallTrainer trainer(&world, MakeSpec({.chunks = 3}));
  const auto work_until_quiet = [&world] {
    world.Settle();
    while (world.team().waiting() > 0) {
      world.team().RunOne(0);
      world.Settle();
    }
  };
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(4);
  trainer.Submit({.seed = 1});
  trainer.rank(0).EndStep(0, 0.01F);
  while (world.tables().jobs.front()->states->sealed_version() == 0) {
    world.Settle();
    if (world.team().waiting() > 0) world.team().RunOne(0);
  }
  world.Lose(trainer.rank(0));  // sealed, and no chunk updated yet
  work_until_quiet();
  ASSERT_TRUE(trainer.JoinAll());
  EXPECT_EQ(trainer.version(), 1u);
  for (ChunkId chunk = 0; chunk < 3; ++chunk)
    EXPECT_EQ(world.tables().jobs.front()->states->chunk(chunk).version, 1u);
}

TEST(Rejoining, AnAbandonedStepsWorkEndsBeforeItsSlotsAreWrittenAgain) {
  WorldOptions options = WithLease();
  options.loop.run_inline_work = false;
  ServeWorld world(options);
  SmallTrainer trainer(&world, MakeSpec({.chunks = 1, .micro_batches = 2}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(4);
  trainer.Submit({.seed = 1});
  world.Settle();
  ASSERT_EQ(world.team().waiting(), 1u) << "the addition of the second micro-batch";
  world.Lose(trainer.rank(0));
  world.Settle();
  ASSERT_TRUE(trainer.JoinAll());
  FakeRank& rank = trainer.rank(0);
  const uint64_t first = rank.Submit({0, 0, 192, 0, 0, 0});
  world.Settle();
  EXPECT_EQ(rank.Take(), std::nullopt);
  world.team().RunOne(0);
  EXPECT_EQ(world.Await(&rank, first).error, 0u);
}

TEST(Leaving, ACopyThatOutlivesItsStepIsAnsweredWithPeerLost) {
  SlowDevice device;
  WorldOptions options = WithLease();
  options.device = &device;
  ServeWorld world(options);
  const shm::JobSpec spec = MakeSpec({.world = 2, .chunks = 1});
  auto rank0 = world.Join(spec, 0);
  auto rank1 = world.Join(spec, 1);
  const auto put = [&](FakeRank* rank) {
    const uint64_t counter = rank->Put(0, rank->rank() * 96, 96, 0);
    world.loop().Turn();
    device.Move(0, kMiB);
    EXPECT_EQ(world.Await(rank, counter).error, 0u);
  };
  put(rank0.get());
  put(rank1.get());
  const uint64_t gradient = rank0->Submit({0, 0, 96, 0, 0, 0});
  world.Settle();
  ASSERT_EQ(device.busy(), 1u);
  world.Lose(*rank1);
  world.Settle();
  EXPECT_EQ(rank0->Take(), std::nullopt) << "the rCache range still belongs to the server";
  device.Move(0, kMiB);
  EXPECT_EQ(world.Await(rank0.get(), gradient).error, static_cast<uint32_t>(ErrorId::kPeerLost));
}

TEST(Leaving, CopiesInFlightAreDroppedWithTheirSession) {
  SlowDevice device;
  WorldOptions options;
  options.device = &device;
  ServeWorld world(options);
  auto rank = world.Join(MakeSpec({.chunks = 1}), 0);
  rank->Put(0, 0, 192, 0);
  world.Settle();
  device.Move(0, 100);  // torn in the middle
  world.Lose(*rank);
  EXPECT_TRUE(AllBack(&world));
  EXPECT_EQ(device.busy(), 0u);
}

TEST(Leaving, AFetchInFlightAtADeathHoldsUpNoLaterUpdate) {
  SlowDevice device;
  WorldOptions options = WithLease();
  options.device = &device;
  ServeWorld world(options);
  auto rank = world.Join(MakeSpec({.chunks = 1}), 0);
  const uint64_t put = rank->Put(0, 0, 192, 0);
  world.Settle();
  device.Move(0, kMiB);
  ASSERT_EQ(world.Await(rank.get(), put).error, 0U);
  rank->Fetch(0, 0, 192, 0, 0);
  world.Settle();
  ASSERT_EQ(device.busy(), 1U);
  ASSERT_EQ(world.tables().jobs.front()->states->chunk(0).readers, 1U);
  world.Lose(*rank);
  world.Settle();
  EXPECT_EQ(world.tables().jobs.front()->states->chunk(0).readers, 0U);
}

TEST(Saving, HoldsUpdatesUntilTheFileIsWritten) {
  Trained trained({});
  ServeWorld& world = trained.world;
  FakeRank& rank = trained.trainer.rank(0);
  world.Post(SaveWeights{rank.connection(), UniqueFd(), "weights.safetensors", 1});
  world.Settle();
  EXPECT_EQ(world.TakeReply<SaveDone>()->result.id(), ErrorId::kSaveFailed) << "an old version";

  world.Post(SaveWeights{rank.connection(), UniqueFd(), "weights.safetensors", 2});
  world.Settle();
  const auto saves = world.TakeSaves();
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_EQ(saves[0].name, "weights.safetensors");
  ASSERT_EQ(saves[0].tensors.size(), 4u);
  EXPECT_EQ(saves[0].tensors[1].name, "layer0.bias");
  const float before = saves[0].tensors[0].data[0];
  trained.trainer.Submit({.seed = 3});
  trained.trainer.set_version(trained.trainer.EndStep({.seed = 3}).version);  // sealed all the same
  world.Settle();
  EXPECT_EQ(saves[0].tensors[0].data[0], before);
  world.AnswerSave(rank.connection(), Status());
  world.Settle();
  EXPECT_TRUE(world.TakeReply<SaveDone>()->result.ok());
  EXPECT_NE(saves[0].tensors[0].data[0], before);
}

TEST(Leaving, TheLastGoodbyeIsAnsweredWhenTheJobsMemoryIsFree) {
  Trained trained({});
  ServeWorld& world = trained.world;
  const ConnectionId first = trained.trainer.rank(0).connection();
  world.Post(SaveWeights{first, UniqueFd(), "w", 2});  // keeps the job's memory in use
  world.Settle();
  ASSERT_EQ(world.TakeSaves().size(), 1u);
  world.Leave(trained.trainer.rank(0));
  world.Settle();
  EXPECT_EQ(world.TakeReply<SessionOver>()->connection, first);
  world.Leave(trained.trainer.rank(1));
  world.Settle();
  EXPECT_FALSE(world.TakeReply<SessionOver>());
  world.AnswerSave(first, Status());
  world.Settle();
  const auto over = world.TakeReply<SessionOver>();
  ASSERT_TRUE(over);
  EXPECT_TRUE(over->why.ok());
  EXPECT_EQ(over->connection, trained.trainer.rank(1).connection());
  EXPECT_TRUE(AllBack(&world));
}

TEST(Saving, ARemovedJobsMemoryWaitsForItsSave) {
  Trained trained({});
  ServeWorld& world = trained.world;
  const ConnectionId connection = trained.trainer.rank(0).connection();
  world.Post(SaveWeights{connection, UniqueFd(), "w", 2});
  world.Settle();
  ASSERT_EQ(world.TakeSaves().size(), 1u);
  trained.trainer.LeaveAll();
  EXPECT_LT(world.pool().free_bytes(), world.pool().total_bytes());
  world.AnswerSave(connection, Status());
  EXPECT_TRUE(AllBack(&world));
}

TEST(Stopping, EndsAllSessionsAndAnswersStopped) {
  Trained trained(WithLease());
  trained.world.Post(StopServing{});
  trained.world.Settle();
  EXPECT_EQ(trained.trainer.rank(0).Ended(), ErrorId::kSessionEnded);
  EXPECT_TRUE(trained.world.TakeReply<Stopped>());
  EXPECT_TRUE(trained.world.loop().stopped());
  EXPECT_TRUE(AllBack(&trained.world));
  EXPECT_EQ(trained.world.Join(trained.trainer.spec(), 0), nullptr);
  EXPECT_EQ(Refusal(&trained.world).id(), ErrorId::kSessionEnded);
}

// Its job is not open yet, so it cannot be handed over: the rank attaches to the next server from
// the start.
TEST(Stopping, ARankThatAttachesWhileTheServerIsReplacedIsToldToTryAgain) {
  for (const bool hand_over : {true, false}) {
    const ErrorId told = hand_over ? ErrorId::kNotReady : ErrorId::kSessionEnded;
    ServeWorld world(WithLease());
    for (const Rank rank : {0, 1}) world.Reserve(MakeSpec({.world = 2}), rank);
    world.Settle();
    world.Post(StopServing{hand_over});
    const ConnectionId late = world.Reserve(MakeSpec({.name = "late"}), 0);
    world.Settle();
    EXPECT_FALSE(world.TakeReply<PeerGone>()) << "nobody was lost";
    for (int rank = 0; rank < 2; ++rank) {
      const auto over = world.TakeReply<SessionOver>();
      ASSERT_TRUE(over);
      EXPECT_EQ(over->why.id(), told);
    }
    const auto refused = world.TakeReply<Refused>();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->connection, late);
    EXPECT_EQ(refused->why.id(), told);
    EXPECT_TRUE(world.loop().stopped());
    EXPECT_TRUE(AllBack(&world));
  }
}

TEST(Snapshots, ShowJobsSessionsAndChunks) {
  Trained trained({});
  trained.world.Settle();
  trained.world.Post(SnapshotWanted{});
  trained.world.Settle();
  const auto ready = trained.world.TakeReply<SnapshotReady>();
  ASSERT_TRUE(ready);
  const Snapshot& snapshot = *ready->snapshot;
  ASSERT_EQ(snapshot.jobs.size(), 1u);
  const JobRow& job = snapshot.jobs[0];
  EXPECT_EQ(job.state, "training");
  EXPECT_EQ(job.version, 2u);
  EXPECT_EQ(job.pool_bytes, snapshot.pool_used);
  EXPECT_EQ(job.sessions.size(), 2u);
  EXPECT_EQ(job.parameters, 2 * 187u);
  EXPECT_EQ(snapshot.parameters_updated, 2 * job.parameters);
  EXPECT_EQ(job.chunks[1].version, 2u);
  EXPECT_EQ(LetterOf(job.chunks[1].state), '.');
  EXPECT_GT(snapshot.bytes_d2h, 0u);
}

}  // namespace job_desk_test
}  // namespace tidepool::memserver

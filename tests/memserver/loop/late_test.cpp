// A drive that does not answer: it is named within the deadline, nobody but its own jobs waits, all
// goes on when it answers late, and what never comes ends only the jobs that need it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/fakes/check_staging.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace late_test {

using nvme::IoKind;
using Weights = std::vector<std::vector<float>>;

shm::JobSpec Spec(const std::string& name = "gpt", uint32_t chunks = 3) {
  return MakeSpec({.name = name, .dtype = DType::kBF16, .chunks = chunks, .chunk_elements = 4096});
}

WorldOptions OnNvme(uint32_t directories = 1) {
  WorldOptions options = WithStatesOnNvme(Spec(), 2, directories);
  options.tier.late_ns = 20 * kNsPerMs;
  options.tier.lost_ns = 200 * kNsPerMs;
  return options;
}

class Late : public ::testing::Test {
 protected:
  void Start(SmallTrainer* trainer) {
    ASSERT_TRUE(trainer->JoinAll());
    trainer->PutWeights(7);
    world().AwaitWeights(trainer->spec().name);
  }
  void Step(SmallTrainer* trainer, uint64_t seed) {
    ASSERT_EQ(trainer->Step({.learning_rate = 0.05F, .seed = seed}).error, 0u);
  }
  void Pass(int64_t ms) {
    for (const int64_t end = world().clock().NowNs() + ms * kNsPerMs;
         world().clock().NowNs() < end;) {
      if (!world().loop().Turn()) world().clock().Advance(kNsPerMs);
      CheckStaging(world().tier(), world().tables(), world().jobs().demotion());
    }
  }
  NvmeRow Nvme() {
    world().Post(SnapshotWanted{});
    world().loop().Turn();
    const auto ready = world().TakeReply<SnapshotReady>();
    EXPECT_TRUE(ready.has_value());
    return ready ? ready->snapshot->nvme : NvmeRow{};
  }
  static Weights OnHost(uint32_t steps, uint32_t chunks = 3) {
    ServeWorld host;
    SmallTrainer trainer(&host, Spec("gpt", chunks));
    EXPECT_TRUE(trainer.JoinAll());
    trainer.PutWeights(7);
    for (uint64_t seed = 1; seed <= steps; ++seed)
      trainer.Step({.learning_rate = 0.05F, .seed = seed});
    return trainer.FetchAll();
  }
  ServeWorld& world() {
    if (!world_) world_.emplace(options_);
    return *world_;
  }

  WorldOptions options_ = OnNvme();

 private:
  std::optional<ServeWorld> world_;
};

TEST_F(Late, AnAnswerThatDoesNotComeIsNamedAndAllGoesOnWhenItDoes) {
  for (const IoKind kind : {IoKind::kRead, IoKind::kWrite}) {
    SmallTrainer trainer(&world(), Spec());
    Start(&trainer);
    world().disk().HangNext(kind);
    Step(&trainer, 1);
    Pass(10);
    EXPECT_TRUE(Nvme().late.empty()) << "the deadline has not passed";
    Pass(30);
    const NvmeRow row = Nvme();
    ASSERT_EQ(row.late.size(), 1u);
    EXPECT_EQ(row.late[0].name, "gpt");
    EXPECT_EQ(row.late[0].directory, "simulated0");
    EXPECT_EQ(row.late[0].write, kind == IoKind::kWrite);
    EXPECT_GE(row.late[0].seconds, 0.02);
    EXPECT_FALSE(row.late[0].lost);
    const auto due = [](const Chunk& chunk) { return chunk.version == 0; };
    const auto chunks = world().tables().jobs[0]->states->chunks();
    EXPECT_EQ(std::count_if(chunks.begin(), chunks.end(), due), 1) << "the others are updated";
    Pass(100);
    world().disk().Wake();
    EXPECT_EQ(trainer.FetchAll(), OnHost(1));
    EXPECT_TRUE(Nvme().late.empty());
    trainer.LeaveAll();
    world().Settle();
    EXPECT_EQ(world().tier().staging_free(), StateTier::kStagingSlots);
  }
}

TEST_F(Late, AReadThatNeverComesEndsItsJobByNameAndNobodyElse) {
  SmallTrainer trainer(&world(), Spec()), other(&world(), Spec("other"));
  Start(&trainer);
  Start(&other);
  world().disk().HangNext(IoKind::kRead);
  Step(&trainer, 1);
  Pass(300);
  const auto over = world().TakeReply<SessionOver>();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->why.id(), ErrorId::kNvmeStalled);
  EXPECT_THAT(over->why.Line(),
              ::testing::AllOf(::testing::HasSubstr("gpt"), ::testing::HasSubstr("chunk"),
                               ::testing::HasSubstr("the drive has not answered: "),
                               ::testing::HasSubstr("cannot be read")));
  ASSERT_EQ(world().tables().jobs.size(), 1u) << "its memory is free at once";
  for (uint64_t seed = 1; seed <= 3; ++seed) Step(&other, seed);
  EXPECT_EQ(other.FetchAll(), OnHost(3));
  EXPECT_EQ(world().tier().staging_free(), StateTier::kStagingSlots - 1)
      << "the system may still write into it";
  EXPECT_TRUE(Nvme().late.at(0).lost);
  world().disk().Wake();
  Pass(10);
  EXPECT_EQ(world().tier().staging_free(), StateTier::kStagingSlots);
  EXPECT_TRUE(Nvme().late.empty());
}

TEST_F(Late, AWriteThatNeverComesStaysInThePoolAndItsPlaceIsNobodysUntilItDoes) {
  SmallTrainer trainer(&world(), Spec());
  Start(&trainer);
  world().disk().HangNext(IoKind::kWrite);
  Step(&trainer, 1);
  Pass(300);
  EXPECT_EQ(Nvme().pieces_in_pool, 1u);
  for (uint64_t seed = 2; seed <= 4; ++seed) Step(&trainer, seed);
  EXPECT_EQ(trainer.FetchAll(), OnHost(4));
  world().Leave(trainer.rank(0));
  Pass(50);
  EXPECT_TRUE(world().tables().jobs.empty());
  EXPECT_EQ(world().pool().free_bytes(), world().pool().total_bytes());
  EXPECT_EQ(world().tier().used_bytes(), shm::NvmeBytesOf(Spec(), 0))
      << "a late write must not land in another job";
  world().disk().Wake();
  Pass(50);
  EXPECT_EQ(world().tier().used_bytes(), 0u);
  EXPECT_EQ(world().tier().staging_free(), StateTier::kStagingSlots);
}

TEST_F(Late, AWriteThatNeverComesAndHasNoRoomInThePoolEndsItsJobByName) {
  options_.pool_bytes = shm::HostStateBytesOf(Spec(), 0).total();
  SmallTrainer trainer(&world(), Spec());
  Start(&trainer);
  world().disk().HangNext(IoKind::kWrite);
  Step(&trainer, 1);
  Pass(300);
  const auto over = world().TakeReply<SessionOver>();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->why.id(), ErrorId::kNvmeStalled);
  EXPECT_EQ(world().pool().free_bytes(), world().pool().total_bytes());
  EXPECT_GT(world().tier().used_bytes(), 0u);
  world().disk().Wake();
  Pass(50);
  EXPECT_EQ(world().tier().used_bytes(), 0u);
}

// A job of which all states were on the host, until it had no ranks.
class LateDemoted : public Late {
 protected:
  LateDemoted() {
    options_.loop.live.states_on = WorldOptions{}.loop.live.states_on;
    options_.loop.times.lease_ns = 3600 * kNsPerSecond;
  }
  void Detach(SmallTrainer* trainer) {
    Start(trainer);
    ASSERT_EQ(world().tables().jobs[0]->states->nvme_total(), 0u);
    world().Lose(trainer->rank(0));
    world().Settle();
  }
};

TEST_F(LateDemoted, AWriteThatNeverComesKeepsItsPlaceAlsoOfStatesThatWereOnTheHost) {
  SmallTrainer trainer(&world(), Spec());
  Detach(&trainer);
  ASSERT_TRUE(world().Command(EvictJob{"gpt"}).ok());
  world().Settle();
  ASSERT_EQ(world().tables().jobs[0]->states->demoted(), 3u);
  ASSERT_TRUE(trainer.JoinAll());
  world().disk().HangNext(IoKind::kWrite);
  Step(&trainer, 1);
  Pass(300);
  EXPECT_EQ(Nvme().pieces_in_pool, 1u);
  EXPECT_EQ(trainer.FetchAll(), OnHost(1));
  world().Leave(trainer.rank(0));
  Pass(50);
  EXPECT_TRUE(world().tables().jobs.empty());
  EXPECT_EQ(world().tier().used_bytes(), shm::NvmeBytesOf(Spec(), 0))
      << "a late write must not land in another job";
  world().disk().Wake();
  Pass(50);
  EXPECT_EQ(world().tier().used_bytes(), 0u);
  EXPECT_EQ(world().tier().staging_free(), StateTier::kStagingSlots);
}

TEST_F(LateDemoted, StatesThatADriveMayStillWriteGoThereNoSecondTime) {
  options_.nvme_directories = 2;
  SmallTrainer trainer(&world(), Spec());
  Detach(&trainer);
  world().disk().HangNext(IoKind::kWrite);
  ASSERT_TRUE(world().Command(EvictJob{"gpt"}).ok());
  Pass(300);
  EXPECT_EQ(world().tables().counters.demotions_failed, 1u);
  EXPECT_GT(world().tier().used_bytes(), 0u);
  world().clock().Advance(kDemotionPauseNs);
  EXPECT_THAT(world().Command(EvictJob{"gpt"}).why(),
              ::testing::HasSubstr("a drive may still write"));
  world().disk().Wake();
  Pass(50);
  EXPECT_EQ(world().tier().used_bytes(), 0u);
  ASSERT_TRUE(world().Command(EvictJob{"gpt"}).ok());
  world().Settle();
  EXPECT_EQ(world().tables().jobs[0]->states->demoted(), 3u);
  ASSERT_TRUE(trainer.JoinAll());
  Step(&trainer, 1);
  EXPECT_EQ(trainer.FetchAll(), OnHost(1));
}

// Jobs of one chunk each: the first lies in the first directory, the second in the second.
TEST_F(Late, ADriveThatHangsStopsNoJobOfAnother) {
  options_ = OnNvme(2);
  options_.tier.late_ns = 20 * kNsPerSecond;  // not even told yet
  options_.tier.lost_ns = 200 * kNsPerSecond;
  SmallTrainer first(&world(), Spec("first", 1)), second(&world(), Spec("second", 1));
  Start(&first);
  Start(&second);
  ASSERT_EQ(world().tables().jobs[0]->states->chunk(0).spill.directory, 0u);
  ASSERT_EQ(world().tables().jobs[1]->states->chunk(0).spill.directory, 1u);
  world().disk().Hang(0);
  Step(&first, 1);
  for (uint64_t seed = 1; seed <= 5; ++seed) Step(&second, seed);
  second.FetchAll();
  EXPECT_EQ(world().tables().jobs[0]->states->chunk(0).version, 0u);
  EXPECT_EQ(world().tables().jobs[1]->states->chunk(0).version, 5u);
  world().disk().Wake();
  first.FetchAll();
  EXPECT_EQ(world().tables().jobs[0]->states->chunk(0).version, 1u);
}

// The second write keeps the loop going until the first, which was given up, is answered.
TEST_F(Late, AWriteThatIsAnsweredAfterAllWhileAnotherServerTakesOverIsTaken) {
  options_.loop.times.lease_ns = 5 * kNsPerSecond;
  SmallTrainer first(&world(), Spec("first", 1)), second(&world(), Spec("second", 1));
  Start(&first);
  Start(&second);
  for (SmallTrainer* trainer : {&first, &second}) {
    world().disk().HangNext(IoKind::kWrite);
    Step(trainer, 1);
    Pass(100);
  }
  world().Post(StopServing{.hand_over = true});
  Pass(60);
  ASSERT_FALSE(world().loop().stopped());
  EXPECT_TRUE(world().tables().jobs[0]->spills.pieces_in_staging() == 1 &&
              !world().tables().jobs[0]->spills.moving())
      << "given up";
  EXPECT_TRUE(world().tables().jobs[1]->spills.moving());
  world().disk().Wake();
  Pass(50);
  ASSERT_TRUE(world().loop().stopped());
  EXPECT_EQ(world().tier().staging_free(), StateTier::kStagingSlots);
  world().Restart();
  ASSERT_TRUE(world().recovered().ok()) << world().recovered().Line();
  for (SmallTrainer* trainer : {&first, &second}) {
    ASSERT_TRUE(world().Resume(trainer->ranks()[0].get(), trainer->spec()));
    Step(trainer, 2);
    EXPECT_EQ(trainer->FetchAll(), OnHost(2, 1));
  }
}

// Some pieces have all places of a drive that hangs, so that the others are not even asked for.
class LateQueued : public LateDemoted {
 protected:
  static constexpr uint32_t kMany = 16;
  LateQueued() {
    options_.pool_bytes = 64 * kMiB;
    options_.nvme_bytes = 2 * shm::NvmeBytesOf(Spec("gpt", kMany), 0);
    options_.tier.block_bytes = kPageBytes;
  }
  void ExpectAllFree() {
    Pass(50);
    EXPECT_EQ(world().tier().in_flight(), 0u);
    EXPECT_EQ(world().tier().staging_free(), StateTier::kStagingSlots);
    EXPECT_TRUE(Nvme().late.empty());
  }
};

TEST_F(LateQueued, ReadsEndTheirJobAllTheSame) {
  options_.loop.live.states_on = StatesOn::kNvme;
  SmallTrainer trainer(&world(), Spec("gpt", kMany));
  Start(&trainer);
  world().disk().Hang(0);
  Step(&trainer, 1);
  Pass(300);
  const auto over = world().TakeReply<SessionOver>();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->why.id(), ErrorId::kNvmeStalled);
  EXPECT_TRUE(world().tables().jobs.empty());
  EXPECT_GT(world().tier().staging_free(), StateTier::kStagingSlots - kMany)
      << "what was not asked for is free at once";
  world().disk().Wake();
  ExpectAllFree();
}

TEST_F(LateQueued, WritesStayInThePool) {
  options_.loop.live.states_on = StatesOn::kNvme;
  SmallTrainer trainer(&world(), Spec("gpt", kMany));
  ASSERT_TRUE(trainer.JoinAll());
  world().disk().Hang(0);
  trainer.PutWeights(7);
  Pass(400);
  EXPECT_EQ(Nvme().pieces_in_pool, kMany);
  EXPECT_TRUE(world().tables().jobs[0]->states->weights_ready());
  world().disk().Wake();
  ExpectAllFree();
  Step(&trainer, 1);
  EXPECT_EQ(trainer.FetchAll(), OnHost(1, kMany));
}

TEST_F(LateQueued, AMoveToNvmeEnds) {
  SmallTrainer trainer(&world(), Spec("gpt", kMany));
  Detach(&trainer);
  ASSERT_TRUE(world().Command(EvictJob{"gpt"}).ok());
  world().disk().Hang(0);
  Pass(400);
  EXPECT_FALSE(world().jobs().demotion().active());
  EXPECT_EQ(world().tables().counters.demotions_failed, 1u);
  world().disk().Wake();
  ExpectAllFree();
  EXPECT_EQ(world().tier().used_bytes(), 0u);
  ASSERT_TRUE(trainer.JoinAll());
  Step(&trainer, 1);
  EXPECT_EQ(trainer.FetchAll(), OnHost(1, kMany));
}

TEST_F(Late, ATableThatIsNeverWrittenEndsTheJobThatWaitsForItAndTheDirectoryTakesNoMore) {
  world().disk().Hang(1 + (world().tier().store(0).manifest().generation + 1) % 2);
  world().Reserve(Spec(), 0);
  world().loop().Turn();
  const auto granted = world().TakeReply<ReserveGranted>();
  ASSERT_TRUE(granted.has_value());
  const auto rank = world().Attach(*granted, 0);
  Pass(300);
  const auto over = world().TakeReply<SessionOver>();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->why.id(), ErrorId::kNvmeIoFailed);
  EXPECT_TRUE(world().tier().store(0).poisoned());
  EXPECT_TRUE(Nvme().late.at(0).lost);
  world().disk().Wake();
  Pass(50);
  EXPECT_TRUE(Nvme().late.empty());
  EXPECT_EQ(world().tier().in_flight(), 0u);
}

TEST_F(Late, AScrubNamesWhatIsNotAnsweredAndGoesOn) {
  SmallTrainer trainer(&world(), Spec());
  Start(&trainer);
  world().disk().HangNext(IoKind::kRead);
  ASSERT_TRUE(world().Scrub().ok());
  Pass(300);
  const ScrubRow scrub = Nvme().scrub;
  EXPECT_EQ(scrub.state, ScrubState::kDone);
  ASSERT_EQ(scrub.damaged, 1u);
  EXPECT_THAT(scrub.damage[0].what, ::testing::HasSubstr("answer"));
  Step(&trainer, 1);
  EXPECT_EQ(trainer.FetchAll(), OnHost(1)) << "the job goes on";
}

}  // namespace late_test
}  // namespace tidepool::memserver

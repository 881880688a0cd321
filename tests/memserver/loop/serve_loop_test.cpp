// A whole serve loop in one process: weights in, parameters out, gradients in, steps sealed.
#include "memserver/loop/serve_loop.h"
#include "shm/spec/state_bytes.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include <gtest/gtest.h>
#include "tests/fakes/adam_model.h"
#include "tests/fakes/serve_world.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace serve_loop_test {

float WeightAt(ChunkId chunk, uint64_t i) {
  return 0.01F * static_cast<float>(i % 37) - 0.1F * static_cast<float>(chunk + 1);
}
float GradientAt(ChunkId chunk, uint64_t i, Version step) {
  return std::sin(0.1F * static_cast<float>(i) + static_cast<float>(chunk) +
                  0.5F * static_cast<float>(step));
}

TEST(SpinBudget, FollowsHowOftenWorkComes) {
  SpinBudget budget(16'000);
  EXPECT_EQ(budget.ns(), 16'000) << "work may come often: find out";
  for (int i = 0; i < 10; ++i) budget.Woke(1'000'000);
  EXPECT_EQ(budget.ns(), 1'000) << "never below a sixteenth";
  budget.Woke(16'000);
  EXPECT_EQ(budget.ns(), 16'000) << "spinning on would have caught it";
  budget.Woke(16'001);
  EXPECT_EQ(budget.ns(), 8'000);
  SpinBudget none(0);
  none.Woke(5);
  EXPECT_EQ(none.ns(), 0) << "the configuration bounds it";
}

TEST(WakeSet, TellsWhetherClientsAloneRang) {
  const UniqueFd own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      shared(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  WakeSet set;
  ASSERT_TRUE(set.Add(own.get()) && set.AddShared(shared.get()));
  const auto ring = [](const UniqueFd& fd) { EXPECT_EQ(eventfd_write(fd.get(), 1), 0); };
  EXPECT_FALSE(set.Wait(kNsPerMs)) << "nobody";
  ring(shared);
  EXPECT_TRUE(set.Wait(kNsPerSecond));
  EXPECT_FALSE(set.Wait(kNsPerMs)) << "a ring is told once";
  ring(shared);
  ring(own);
  EXPECT_FALSE(set.Wait(kNsPerSecond)) << "the loop's own events need its turn";
  EXPECT_FALSE(set.Wait(kNsPerSecond)) << "told until it is cleared";
}

TEST(ServeLoop, OneRankTrainsThreeSteps) {
  ServeWorld world;
  const shm::JobSpec spec = MakeSpec({});
  auto rank = world.Join(spec, 0);
  ASSERT_NE(rank, nullptr);
  const auto attached = world.TakeReply<Attached>();
  ASSERT_TRUE(attached);
  EXPECT_FALSE(attached->weights_ready);
  EXPECT_EQ(attached->pool_bytes, shm::StateBytesOf(spec).total());

  AdamModel model(spec);
  for (ChunkId chunk = 0; chunk < 2; ++chunk) {
    for (uint64_t i = 0; i < 192; ++i)
      model.weights(chunk)[i] = rank->At<float>(0)[i] = WeightAt(chunk, i);
    EXPECT_EQ(world.Await(rank.get(), rank->Put(chunk, 0, 192, 0)).error, 0u);
  }
  for (Version step = 0; step < 3; ++step) {
    for (ChunkId chunk = 0; chunk < 2; ++chunk) {
      for (uint64_t i = 0; i < 192; ++i)
        model.gradients(chunk)[i] = rank->At<float>(4096)[i] = GradientAt(chunk, i, step);
      EXPECT_EQ(world.Await(rank.get(), rank->Submit({chunk, 0, 192, 4096, step, 0})).error, 0u);
    }
    const double norm = model.Step(0.01, 1);
    const shm::Completion end = world.Await(rank.get(), rank->EndStep(step, 0.01F));
    EXPECT_EQ(end.error, 0u);
    EXPECT_EQ(end.version, step + 1);
    EXPECT_NEAR(end.grad_norm, norm, 1e-5 * norm);
    for (ChunkId chunk = 0; chunk < 2; ++chunk) {
      const shm::Completion fetched =
          world.Await(rank.get(), rank->Fetch(chunk, 0, 192, 8192, step + 1));
      EXPECT_EQ(fetched.bytes, 192u * 4);
      for (uint64_t i = 0; i < 192; ++i) {
        // Padding (elements 91 to 95) keeps what was put there.
        EXPECT_NEAR(rank->At<float>(8192)[i], model.weights(chunk)[i], 1e-5)
            << "chunk " << chunk << " element " << i;
      }
    }
  }
}

// The loop on a thread of its own, as in the daemon.
class Running : public ::testing::Test {
 protected:
  void Start(const WorldOptions& options, const shm::JobSpec& spec) {
    world_ = std::make_unique<ServeWorld>(options);
    rank_ = world_->Join(spec, 0);
    ASSERT_NE(rank_, nullptr);
    thread_ = std::thread([this] { world_->loop().Run(); });
  }
  void TearDown() override {
    world_->Post(StopServing{});
    thread_.join();
    EXPECT_TRUE(world_->loop().stopped());
  }
  shm::Completion Await(uint64_t counter) {
    while (true) {
      if (const auto answer = rank_->Take()) {
        EXPECT_EQ(answer->counter, counter);
        return *answer;
      }
      EXPECT_EQ(rank_->Ended(), std::nullopt);
      if (rank_->Ended()) return {};
      rank_->port().WaitForCompletion(&clock_, 10 * kNsPerSecond, 0);
    }
  }
  std::shared_ptr<const Snapshot> Look() {
    world_->Post(SnapshotWanted{});
    while (true) {
      if (const auto ready = world_->TakeReply<SnapshotReady>()) return ready->snapshot;
      SteadyClock().SleepNs(kNsPerMs);
    }
  }
  uint64_t Turns() { return Look()->turns; }

  std::unique_ptr<ServeWorld> world_;
  SteadyClock clock_;
  std::unique_ptr<FakeRank> rank_;
  std::thread thread_;
};

TEST_F(Running, SleepsWhenIdleAndWakesForEveryKindOfEvent) {
  WorldOptions options{.workers = 1, .copy_threads = 1};
  options.loop.times.spin_ns = 0;
  Start(options, MakeSpec({}));
  for (ChunkId chunk = 0; chunk < 2; ++chunk)
    EXPECT_EQ(Await(rank_->Put(chunk, 0, 192, 0)).error, 0u);
  for (Version step = 0; step < 50; ++step) {
    // Sometimes it is about to sleep, sometimes it sleeps, sometimes so long that it answers and
    // sleeps again at once.
    SteadyClock().SleepNs(step % 5 * 100'000);
    for (ChunkId chunk = 0; chunk < 2; ++chunk)
      EXPECT_EQ(Await(rank_->Submit({chunk, 0, 192, 4096, step, 0})).error, 0u);
    EXPECT_EQ(Await(rank_->EndStep(step, 0.01F)).version, step + 1);
    EXPECT_EQ(Await(rank_->Fetch(1, 0, 192, 8192, step + 1)).error, 0u);
  }
  const uint64_t before = Turns();
  SteadyClock().SleepNs(300 * kNsPerMs);
  EXPECT_LT(Turns() - before, 100u) << "an idle loop does not spin";
}

TEST_F(Running, AnswersAfterASilenceAndSleepsAgainAtOnce) {
  WorldOptions options{.workers = 1};
  options.loop.times.spin_ns = 0;
  Start(options, MakeSpec({}));
  for (ChunkId chunk = 0; chunk < 2; ++chunk)
    EXPECT_EQ(Await(rank_->Put(chunk, 0, 192, 0)).error, 0u);
  const auto turns_of_requests = [this](int64_t silence_ns) {
    constexpr uint64_t kRequests = 50;
    const uint64_t before = Turns();
    for (uint64_t i = 0; i < kRequests; ++i) {
      SteadyClock().SleepNs(kNsPerMs);  // asleep, as a rule; how long, the world's own clock says
      world_->clock().Advance(silence_ns);
      EXPECT_EQ(Await(rank_->Fetch(i % 2, 0, 16, 8192, 0)).error, 0u);
    }
    return (Turns() - before) / kRequests;
  };
  EXPECT_GT(turns_of_requests(0), 12u) << "the next one may follow: it is looked for";
  EXPECT_LT(turns_of_requests(kNsPerMs), 4u) << "a fetch leaves nothing to do";
}

TEST_F(Running, DoesTheWorkThatAnAnswerLeaves) {
  constexpr uint32_t kChunks = 20;
  WorldOptions options{.workers = 1};
  options.loop.times.spin_ns = 0;
  Start(options, MakeSpec({.chunks = kChunks}));

  const uint64_t before = Turns();
  for (ChunkId chunk = 0; chunk < kChunks; ++chunk) {
    SteadyClock().SleepNs(kNsPerMs);  // asleep, as a rule
    world_->clock().Advance(kNsPerMs);
    EXPECT_EQ(Await(rank_->Put(chunk, 0, 192, 0)).error, 0u);
  }
  EXPECT_GE(Turns() - before, kChunks) << "weights that came may be what others wait for";
}

TEST_F(Running, CountsALongAnswerToARequestThatWokeIt) {
  constexpr uint64_t kRequests = 30;
  WorldOptions options;
  options.loop.times.spin_ns = 0;
  Start(options, MakeSpec({}));
  for (ChunkId chunk = 0; chunk < 2; ++chunk) {
    EXPECT_EQ(Await(rank_->Put(chunk, 0, 192, 0)).error, 0u);
  }

  const uint64_t before = Look()->long_turns;
  world_->clock().AdvanceAtEachLook(2 * kLongTurnNs);
  for (uint64_t i = 0; i < kRequests; ++i) {
    // Asleep, as a rule: it answers there, and does nothing behind it.
    SteadyClock().SleepNs(kNsPerMs);
    EXPECT_EQ(Await(rank_->Fetch(i % 2, 0, 16, 8192, 0)).error, 0u);
  }
  EXPECT_GE(Look()->long_turns - before, kRequests);
}

TEST_F(Running, CopiesInItsOwnThreadToo) {
  WorldOptions options{.pool_bytes = 64 * kMiB, .workers = 2};
  options.loop.times.spin_ns = 0;
  Start(options, MakeSpec({.chunks = 1, .chunk_elements = 1024 * 1024, .rcache_bytes = 8 * kMiB}));
  for (uint64_t i = 0; i < 1024 * 1024; ++i) rank_->At<float>(0)[i] = WeightAt(0, i);
  EXPECT_EQ(Await(rank_->Put(0, 0, 1024 * 1024, 0)).error, 0u);
  const shm::Completion fetched = Await(rank_->Fetch(0, 0, 1024 * 1024, 4 * kMiB, 0));
  EXPECT_EQ(fetched.bytes, 4 * kMiB);
  EXPECT_EQ(std::memcmp(rank_->rcache(), rank_->rcache() + 4 * kMiB, 4 * kMiB), 0);
}

// One big fetch of one client does not make another wait for all of it.
TEST(Fairness, ASmallFetchIsAnsweredWhileABigOneIsCopied) {
  ServeWorld world({.pool_bytes = 64 * kMiB});
  const uint64_t big = 2 * 1024 * 1024;
  SmallTrainer modest(&world, MakeSpec({.name = "modest"}));
  SmallTrainer greedy(
      &world,
      MakeSpec({.name = "greedy", .chunks = 1, .chunk_elements = big, .rcache_bytes = 8 * kMiB}));
  ASSERT_TRUE(greedy.JoinAll() && modest.JoinAll());
  modest.PutWeights(2);
  world.Await(&greedy.rank(0), greedy.rank(0).Put(0, 0, big, 0));
  greedy.rank(0).Fetch(0, 0, big, 0, 0);
  world.loop().Turn();
  const uint64_t small = modest.rank(0).Fetch(0, 0, 192, 0, 0);
  int turns = 0;
  while (!modest.rank(0).Take()) {
    world.loop().Turn();
    ASSERT_LT(++turns, 4);
  }
  EXPECT_GT(small, 0u);
  EXPECT_EQ(greedy.rank(0).Take(), std::nullopt) << "8 MiB take more turns than that";
}

}  // namespace serve_loop_test
}  // namespace tidepool::memserver

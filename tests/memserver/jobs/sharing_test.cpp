// Jobs that compete for copies, optimizer workers and drives get them by weight and priority:
// counted in bytes, in a serve loop in this process.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace sharing_test {

// A job of one rank whose weights are in.
struct Competitor {
  Competitor(ServeWorld* world, const std::string& name, uint32_t chunks, uint64_t chunk_elements)
      : trainer(world, MakeSpec({.name = name,
                                 .chunks = chunks,
                                 .chunk_elements = chunk_elements,
                                 .rcache_bytes = RoundUp(4 * chunk_elements, kPageBytes)})) {
    EXPECT_TRUE(trainer.JoinAll());
    trainer.PutWeights(1);
  }
  Job& job(const ServeWorld& world) const { return *world.tables().FindJob(trainer.spec().name); }
  SmallTrainer trainer;
  uint64_t waiting = 0;  // requests without an answer
};

// --- copies ---

constexpr uint64_t kFetchElements = 2 * 1024;
// So much that the fetches in flight at both ends do not count.
constexpr uint64_t kCopied = 64 * kMiB;

class Copies : public ::testing::TestWithParam<uint32_t> {  // copy threads
 protected:
  static WorldOptions Options() {
    WorldOptions options;
    options.pool_bytes = 16 * kMiB;
    options.copy_threads = GetParam();
    options.loop.shared_copy_bytes = 64 * kKiB;
    return options;
  }
  // Each keeps so many fetches in its ring that it never has too few, until `bytes` are copied in
  // all.
  void Compete(std::vector<Competitor*> jobs, uint64_t bytes) {
    copied_.assign(jobs.size(), 0);
    for (uint64_t all = 0; all < bytes;) {
      for (size_t i = 0; i < jobs.size(); ++i) {
        FakeRank& rank = jobs[i]->trainer.rank(0);
        for (; jobs[i]->waiting < 128; ++jobs[i]->waiting) rank.Fetch(0, 0, kFetchElements, 0, 0);
        while (const auto answer = rank.Take()) {
          ASSERT_EQ(answer->error, 0u);
          --jobs[i]->waiting;
          copied_[i] += answer->bytes;
          all += answer->bytes;
        }
      }
      world_.loop().Turn();
    }
  }
  double Ratio() const { return static_cast<double>(copied_[0]) / static_cast<double>(copied_[1]); }

  ServeWorld world_{Options()};
  std::vector<uint64_t> copied_;
};

TEST_P(Copies, AreSharedByWeight) {
  Competitor two(&world_, "two", 1, kFetchElements), one(&world_, "one", 1, kFetchElements);
  Compete({&two, &one}, kCopied / 2);
  EXPECT_NEAR(Ratio(), 1, 0.05);
  ASSERT_TRUE(world_.SetQuota("two", {.weight = 2}).ok());
  Compete({&two, &one}, kCopied);
  EXPECT_NEAR(Ratio(), 2, 0.1);
}

TEST_P(Copies, OfALowPriorityStillMove) {
  Competitor high(&world_, "high", 1, kFetchElements), low(&world_, "low", 1, kFetchElements);
  ASSERT_TRUE(world_.SetQuota("low", {.priority = Priority::kLow}).ok());
  Compete({&high, &low}, kCopied);
  EXPECT_GT(Ratio(), 10);
  EXPECT_LT(Ratio(), 25) << "1/17 of all is promised";
}

TEST_P(Copies, GoToWhoeverWantsThem) {
  Competitor idle(&world_, "idle", 1, kFetchElements), busy(&world_, "busy", 1, kFetchElements);
  ASSERT_TRUE(world_.SetQuota("idle", {.weight = 100, .priority = Priority::kHigh}).ok());
  Compete({&busy}, kCopied / 8);
  EXPECT_GE(copied_[0], kCopied / 8);
}

INSTANTIATE_TEST_SUITE_P(ByWhom, Copies, ::testing::Values(0u, 1u),
                         [](const ::testing::TestParamInfo<uint32_t>& by) {
                           return std::string(by.param == 0 ? "TheLoop" : "Threads");
                         });

// How long a fetch takes is the machine's affair; how much the loop copies for others before it is
// not.
TEST(CopiesByTheLoop, OfAHighPriorityWaitForNoMoreThanIsInFlight) {
  WorldOptions options;
  options.pool_bytes = 16 * kMiB;
  options.loop.shared_copy_bytes = 64 * kKiB;
  ServeWorld world(options);
  Competitor victim(&world, "victim", 1, kFetchElements),
      greedy(&world, "greedy", 1, kFetchElements);
  ASSERT_TRUE(world.SetQuota("victim", {.priority = Priority::kHigh}).ok());
  FakeRank &asks = victim.trainer.rank(0), &floods = greedy.trainer.rank(0);
  uint64_t most = 0;
  for (int fetch = 0; fetch < 200; ++fetch) {
    asks.Fetch(0, 0, kFetchElements, 0, 0);
    uint64_t meanwhile = 0;
    for (auto answer = asks.Take(); !answer; answer = asks.Take()) {
      for (; greedy.waiting < 128; ++greedy.waiting) floods.Fetch(0, 0, kFetchElements, 0, 0);
      while (const auto other = floods.Take()) {
        --greedy.waiting;
        meanwhile += other->bytes;
      }
      world.loop().Turn();
    }
    most = std::max(most, meanwhile);
  }
  EXPECT_LE(most, 3 * options.loop.shared_copy_bytes);
}

// --- optimizer workers ---

#ifdef TIDEPOOL_SANITIZED
constexpr uint64_t kUpdateElements = 1024;
#else
constexpr uint64_t kUpdateElements = 4096;
#endif

class Workers : public ::testing::Test {
 protected:
  static WorldOptions Options() {
    WorldOptions options;
    options.pool_bytes = 120 * kMiB;
    return options;
  }
  // Seals a step of the job, whose update does not begin yet: a save holds it up.
  void Seal(Competitor* one) {
    SaveWeights save;
    save.connection = one->trainer.rank(0).connection();
    save.name = "weights";
    world_.Post(std::move(save));
    world_.loop().Turn();
    ASSERT_EQ(world_.TakeSaves().size(), 1u);
    one->trainer.Step({.seed = 1});
    ASSERT_TRUE(one->job(world_).updates.active());
    held_.push_back(one);
  }
  // Lets all updates begin at once, until one of them is done.
  void Update() {
    for (Competitor* one : held_) {
      served_.push_back(one->job(world_).worker_share.served);
      world_.AnswerSave(one->trainer.rank(0).connection(), Status());
    }
    const auto all_active = [this] {
      for (const Competitor* one : held_) {
        if (!one->job(world_).updates.active()) return false;
      }
      return true;
    };
    while (all_active()) world_.loop().Turn();
    for (size_t i = 0; i < held_.size(); ++i)
      served_[i] = held_[i]->job(world_).worker_share.served - served_[i];
  }
  double Ratio() const { return static_cast<double>(served_[0]) / static_cast<double>(served_[1]); }

  ServeWorld world_{Options()};
  std::vector<Competitor*> held_;
  std::vector<uint64_t> served_;
};

TEST_F(Workers, AreSharedByWeight) {
  Competitor two(&world_, "two", 800, kUpdateElements), one(&world_, "one", 500, kUpdateElements);
  ASSERT_TRUE(world_.SetQuota("two", {.weight = 2}).ok());
  Seal(&two);
  Seal(&one);
  Update();
  EXPECT_NEAR(Ratio(), 2, 0.1);
}

// What comes from the higher one then waits for no more than what a worker has in hand.
TEST_F(Workers, HaveOneItemEachOfAJobThatGivesWay) {
  constexpr uint64_t kLarge = FairShare::kQuantum / sizeof(float);
  Competitor high(&world_, "high", 2, kUpdateElements), equal(&world_, "equal", 8, kLarge),
      low(&world_, "low", 8, kLarge);
  ASSERT_TRUE(world_.SetQuota("low", {.priority = Priority::kLow}).ok());
  const auto most_at_team = [&](Competitor* one) {
    Seal(one);
    world_.AnswerSave(one->trainer.rank(0).connection(), Status());
    uint32_t most = 0;
    while (one->job(world_).updates.active()) {
      world_.loop().Turn();
      most = std::max(most, one->job(world_).work_at_team);
    }
    return most;
  };
  EXPECT_GT(most_at_team(&equal), 1u) << "nobody is above it";
  EXPECT_EQ(most_at_team(&low), 1u);
}

// Jobs that give way share what is left by their weights as ever.
TEST_F(Workers, AreSharedByWeightBelowAJobThatDoesNothing) {
  Competitor high(&world_, "high", 1, kUpdateElements), two(&world_, "two", 800, kUpdateElements),
      one(&world_, "one", 500, kUpdateElements);
  ASSERT_TRUE(world_.SetQuota("two", {.weight = 2, .priority = Priority::kLow}).ok());
  ASSERT_TRUE(world_.SetQuota("one", {.priority = Priority::kLow}).ok());
  Seal(&two);
  Seal(&one);
  Update();
  EXPECT_NEAR(Ratio(), 2, 0.1);
}

// --- NVMe ---

class Drives : public ::testing::Test {
 protected:
  static constexpr uint64_t kElements = 4096;  // many rounds of the deficit counters
  static WorldOptions Options(uint32_t chunks) {
    WorldOptions options =
        WithStatesOnNvme(MakeSpec({.chunks = chunks, .chunk_elements = kElements}), 3);
    options.pool_bytes = 96 * kMiB;
    return options;
  }
  // All train a step at once, with their states on the drive, for as long as each has pieces to
  // begin.
  void Train(ServeWorld* world, const std::vector<Competitor*>& jobs) {
    for (Competitor* one : jobs) {
      SaveWeights save;
      save.connection = one->trainer.rank(0).connection();
      save.name = "weights";
      world->Post(std::move(save));
      world->loop().Turn();
      ASSERT_EQ(world->TakeSaves().size(), 1u);
      one->trainer.Step({.seed = 1});
      ASSERT_TRUE(one->job(*world).updates.active());
    }
    for (Competitor* one : jobs) {
      moved_.push_back(one->job(*world).drive_share.served);
      world->AnswerSave(one->trainer.rank(0).connection(), Status());
    }
    const auto wants = [&](const Competitor* one) {
      return one->job(*world).spills.wants_to_move();
    };
    for (int turn = 0; turn < 100 && !std::all_of(jobs.begin(), jobs.end(), wants); ++turn)
      world->loop().Turn();
    while (std::all_of(jobs.begin(), jobs.end(), wants)) world->loop().Turn();
    for (size_t i = 0; i < jobs.size(); ++i)
      moved_[i] = jobs[i]->job(*world).drive_share.served - moved_[i];
  }
  std::vector<uint64_t> moved_;  // bytes read and written
};

// Ratios need many pieces, which take a sanitizer half a minute and show it nothing that the next
// test does not.
#ifndef TIDEPOOL_SANITIZED
TEST_F(Drives, AreSharedByWeight) {
  ServeWorld world(Options(800));
  Competitor two(&world, "two", 800, kElements), one(&world, "one", 600, kElements);
  ASSERT_TRUE(world.SetQuota("two", {.weight = 2}).ok());
  Train(&world, {&two, &one});
  EXPECT_NEAR(static_cast<double>(moved_[0]) / static_cast<double>(moved_[1]), 2, 0.1);
}

TEST_F(Drives, MoveStatesOfALowPriorityToo) {
  ServeWorld world(Options(800));
  Competitor high(&world, "high", 800, kElements), low(&world, "low", 200, kElements);
  ASSERT_TRUE(world.SetQuota("low", {.priority = Priority::kLow}).ok());
  Train(&world, {&high, &low});
  EXPECT_GT(moved_[0], 10 * moved_[1]);
  EXPECT_GT(moved_[1], 0u);
}
#endif

TEST_F(Drives, AreNotHeldByWhoeverCameFirst) {
  ServeWorld world(Options(300));
  Competitor first(&world, "first", 300, kElements), second(&world, "second", 300, kElements),
      third(&world, "third", 300, kElements);
  Train(&world, {&first, &second, &third});
  for (const uint64_t moved : moved_)
    EXPECT_NEAR(static_cast<double>(moved) / static_cast<double>(moved_[0]), 1, 0.05);
}

TEST_F(Workers, WorkForALowPriorityToo) {
  Competitor high(&world_, "high", 800, kUpdateElements), low(&world_, "low", 200, kUpdateElements);
  ASSERT_TRUE(world_.SetQuota("low", {.priority = Priority::kLow}).ok());
  Seal(&high);
  Seal(&low);
  Update();
  EXPECT_GT(Ratio(), 10);
  EXPECT_GT(served_[1], 0u);
}

// As long as it asks for something; and everybody has them again when it pauses.
TEST_F(Workers, GiveOthersAPieceNowAndThenBesideThePriorityHigh) {
  constexpr uint32_t kChunks = 4;
  constexpr uint64_t kLarge = FairShare::kQuantum / sizeof(float);
  Competitor high(&world_, "high", 1, kUpdateElements), other(&world_, "other", kChunks, kLarge);
  ASSERT_TRUE(world_.SetQuota("high", {.priority = Priority::kHigh}).ok());
  Seal(&other);
  const uint64_t before = other.job(world_).worker_share.served;
  // By the update of a piece, which is a chunk here: three states, read and written, and a
  // gradient.
  constexpr uint64_t kTouched = 28 * kLarge;
  static_assert(kTouched > kBytesBesideHigh);
  const auto pieces = [&] { return (other.job(world_).worker_share.served - before) / kTouched; };
  const auto ask = [&] {
    high.trainer.rank(0).Fetch(0, 0, kUpdateElements, 0, 0);
    for (int turn = 0; turn < 20; ++turn) world_.loop().Turn();
    while (high.trainer.rank(0).Take()) {
    }
  };
  ask();
  world_.AnswerSave(other.trainer.rank(0).connection(), Status());
  for (uint64_t piece = 1; piece <= 2; ++piece) {
    ask();
    EXPECT_EQ(pieces(), piece) << "a piece touches more than all that others get";
    ask();
    EXPECT_EQ(pieces(), piece) << "not yet again";
    world_.clock().Advance(kBesideHighNs);
  }
  for (int turn = 0; turn < 20; ++turn) world_.loop().Turn();
  EXPECT_FALSE(other.job(world_).updates.active());
}

}  // namespace sharing_test
}  // namespace tidepool::memserver

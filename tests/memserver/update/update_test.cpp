// The small parts of update/: step tracker, judging and sealing, the worker team.
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "memserver/update/seal.h"
#include "memserver/update/step_tracker.h"
#include "memserver/update/thread_nice.h"
#include "memserver/update/tuning.h"
#include "memserver/update/worker_team.h"
#include "tests/fakes/real_clock.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {
namespace update_test {

shm::EndStepRequest End(float learning_rate, float loss_scale = 1, uint32_t scaler_steps = 0) {
  shm::EndStepRequest request{};
  request.learning_rate = learning_rate;
  request.loss_scale = loss_scale;
  request.scaler_steps = scaler_steps;
  request.data_cursor = 77;
  return request;
}

TEST(StepTracker, IsCompleteWhenEveryRankHasEnded) {
  StepTracker tracker(3);
  for (const Rank rank : {2u, 0u, 1u}) {
    EXPECT_FALSE(tracker.AllEnded());
    EXPECT_EQ(tracker.End(rank, End(0.1F)), nullptr);
  }
  EXPECT_TRUE(tracker.AllEnded());
  tracker.Clear();
  EXPECT_FALSE(tracker.HasEnded(0));
}

TEST(StepTracker, HoldsSixtyFourRanks) {
  StepTracker tracker(64);
  for (Rank rank = 0; rank < 64; ++rank) {
    EXPECT_FALSE(tracker.AllEnded());
    tracker.End(rank, End(0.1F));
  }
  EXPECT_TRUE(tracker.AllEnded());
}

TEST(StepTracker, NamesTheNumberInWhichRanksDiffer) {
  StepTracker tracker(2);
  ASSERT_EQ(tracker.End(1, End(0.1F, 2, 3)), nullptr);
  EXPECT_NE(std::string(tracker.End(0, End(0.2F, 2, 3))).find("learning rates"), std::string::npos);
  EXPECT_NE(std::string(tracker.End(0, End(0.1F, 4, 3))).find("loss scales"), std::string::npos);
  EXPECT_NE(std::string(tracker.End(0, End(0.1F, 2, 4))).find("scaler"), std::string::npos);
  EXPECT_EQ(tracker.End(0, End(0.1F, 2, 3)), nullptr);
}

class Sealing : public ::testing::Test {
 protected:
  void SetUp() override {
    auto spec = std::make_shared<shm::JobSpec>(MakeSpec({.max_grad_norm = 2}));
    auto states = JobStates::Create(spec, &world_.pool());
    ASSERT_TRUE(states.ok());
    states_ = std::move(states).value();
    for (const Extent& extent : states_->extents()) std::memset(extent.data, 0, extent.bytes);
    states_->WriteFirstRecords({1, 7, 42, 1000});
    for (Chunk& chunk : states_->chunks()) states_->table().MarkLoaded(&chunk);
  }
  void CompleteAll(double sum_squares) {
    for (double& sum : states_->norm_sums()) sum = sum_squares;
    for (Chunk& chunk : states_->chunks()) chunk.state = ChunkState::kComplete;
  }

  ServeWorld world_;
  std::unique_ptr<JobStates> states_;
};

TEST_F(Sealing, ClipsByTheUnscaledNorm) {
  CompleteAll(100);  // four parameters: norm 20 before unscaling
  const StepRecord record = JudgeStep(*states_, End(0.1F, 4), true);
  EXPECT_DOUBLE_EQ(record.grad_norm, 5);
  EXPECT_FLOAT_EQ(record.gradient_scale, 2.0F / 5 / 4);
  EXPECT_EQ(record.version, 1u);
  EXPECT_EQ(record.optimizer_step, 1u);
  EXPECT_EQ(record.data_cursor, 77u);
  EXPECT_EQ(record.skipped, 0u);
}

TEST_F(Sealing, DoesNotClipASmallNorm) {
  CompleteAll(0.25);
  EXPECT_FLOAT_EQ(JudgeStep(*states_, End(0.1F, 4), true).gradient_scale, 0.25F);
}

TEST_F(Sealing, CountsOnlyTakenStepsForBiasCorrection) {
  CompleteAll(std::numeric_limits<double>::infinity());
  SealStep(states_.get(), JudgeStep(*states_, End(0.1F), false));
  EXPECT_EQ(states_->sealed_version(), 1u);
  EXPECT_EQ(states_->last_step().skipped, 1u);
  EXPECT_EQ(states_->last_step().optimizer_step, 0u);
  for (Chunk& chunk : states_->chunks()) states_->table().Publish(&chunk, 1);
  CompleteAll(1);
  SealStep(states_.get(), JudgeStep(*states_, End(0.1F), true));
  EXPECT_EQ(states_->last_step().version, 2u);
  EXPECT_EQ(states_->last_step().optimizer_step, 1u);
  EXPECT_EQ(states_->record().steps[1].skipped, 1u)
      << "the record of the step before stays until the next but one";
}

using SealingDeathTest = Sealing;
TEST_F(SealingDeathTest, AVersionNeverSkipsAndNeverOutrunsTheSeal) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a forked child would not have the pool
  EXPECT_DEATH(states_->table().Publish(&states_->chunk(0), 1), "outrun");
  const auto seal_and_look = [this] {
    SealStep(states_.get(), JudgeStep(*states_, End(0.1F), true));
    return states_->chunk(0).state;
  };
  EXPECT_DEATH(seal_and_look(), "all its gradients");
}

struct alignas(64) Undo {
  std::byte bytes[8 * sizeof(optim::UndoArea)] = {};
};

Work Accumulation(std::vector<float>* sum, const std::vector<float>& addend) {
  static std::deque<optim::ProgressWord> words;  // one an addition, where they stay
  Work work;
  work.progress = &words.emplace_back();
  work.identity = words.size();
  work.version = 1;
  work.name.kind = WorkKind::kAccumulate;
  work.to = sum->data();
  work.from = addend.data();
  work.count = addend.size();
  return work;
}

TEST(WorkerTeam, InlineDoesNothingUntilAskedAndInAnyOrder) {
  Undo undo;
  WorkerTeam team({}, undo.bytes);
  std::vector<float> sum(4, 1.0F);
  const std::vector<float> one(4, 1.0F);
  ASSERT_TRUE(team.is_inline());
  team.Push(Accumulation(&sum, one));
  Work second = Accumulation(&sum, one);
  second.name.chunk = 9;
  team.Push(second);
  std::vector<WorkDone> done;
  EXPECT_FALSE(team.TakeDone(&done));
  team.RunOne(1);
  ASSERT_TRUE(team.TakeDone(&done));
  EXPECT_EQ(done[0].name.chunk, 9u);
  EXPECT_EQ(sum[0], 2.0F);
  EXPECT_EQ(team.waiting(), 1u);
}

// Two workers add one to `count` arrays of `elements`; the most items that ever waited for them.
uint32_t MostWaiting(size_t count, size_t elements) {
  Undo undo;
  WorkerTeam team({.threads = 2, .cpus = {0, 65535}, .clock = RealClock()}, undo.bytes);
  const std::vector<float> one(elements, 1.0F);
  std::vector<std::vector<float>> sums(count, std::vector<float>(elements, 0.0F));
  std::vector<WorkDone> done;
  size_t pushed = 0, finished = 0;
  uint32_t most = 0;
  while (finished < count) {
    while (pushed < count && team.HasRoom()) team.Push(Accumulation(&sums[pushed++], one));
    most = std::max(most, team.waiting());
    if (team.TakeDone(&done)) finished += done.size();
  }
  for (const auto& sum : sums) EXPECT_EQ(sum, one);
  return most;
}

TEST(WorkerTeam, ThreadsDoAllWorkAndTheQueueIsBounded) {
  EXPECT_LE(MostWaiting(16, size_t{1} << 18), 6U);  // 3 MiB of memory traffic each
  const uint32_t small = MostWaiting(1000, 1000);
  EXPECT_GT(small, 6U);
  EXPECT_LE(small, 128U);
}

TEST(WorkerTeam, TreatsDenormalsAsZeroInEveryMode) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const uint32_t threads : {0u, 1u, 2u}) {
    Undo undo;
    WorkerTeam team({.threads = threads, .clock = RealClock()}, undo.bytes);
    std::vector<std::vector<float>> sums(6, std::vector<float>(1 << 14, 0.0F));
    const std::vector<float> addend(sums.front().size(), tiny);
    std::vector<WorkDone> done;
    const auto* areas = reinterpret_cast<const optim::UndoArea*>(undo.bytes);
    const auto has_worked = [&](uint32_t worker) {
      return areas[size_t{2} * worker].piece.load() != 0;
    };
    do {
      for (auto& sum : sums) {
        while (!team.HasRoom()) SteadyClock().SleepNs(kNsPerMs);
        team.Push(Accumulation(&sum, addend));
        if (team.is_inline()) team.RunOne(0);
      }
      for (size_t finished = 0; finished < sums.size();)
        finished += team.TakeDone(&done) ? done.size() : 0;
    } while (!has_worked(0) || (threads > 1 && !has_worked(1)));
    for (const auto& sum : sums) EXPECT_EQ(sum[3], 0.0F) << threads;
  }
  EXPECT_NE(tiny, 0.0F) << "the caller's own float mode is as before";
}

// Workers sleep between the rounds, and are about to where the next round begins: none may be
// missed.
TEST(WorkerTeam, FindsWorkThatComesWhileItFallsAsleep) {
  SteadyClock clock;
  SplitMix64 random(6);
  for (const int64_t spin_ns : {0, 20'000}) {
    Undo undo;
    WorkerTeam team({.threads = 2, .clock = RealClock(), .spin_ns = spin_ns}, undo.bytes);
    const std::vector<float> one(64, 1.0F);
    std::vector<float> sum(64, 0.0F);
    std::vector<WorkDone> done;
    for (int round = 0; round < 500; ++round) {
      team.Push(Accumulation(&sum, one));
      for (size_t finished = 0; finished < 1;) finished += team.TakeDone(&done) ? done.size() : 0;
      if (round % 4 == 0) clock.SleepNs(static_cast<int64_t>(random.Below(60)) * 1000);
    }
    EXPECT_EQ(sum[63], 500.0F);
  }
}

TEST(BoundedRing, KeepsTheOrderAndCountsWhatWaits) {
  BoundedRing<int> ring(3);
  int value = -1;
  EXPECT_FALSE(ring.Pop(&value));
  for (int turn = 0; turn < 10; ++turn) {
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(ring.HasRoom());
      ASSERT_TRUE(ring.TryPush(4 * turn + i));
    }
    EXPECT_EQ(ring.size(), 4U);
    EXPECT_FALSE(ring.HasRoom());
    EXPECT_FALSE(ring.TryPush(0));
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(ring.Pop(&value));
      EXPECT_EQ(value, 4 * turn + i);
    }
    EXPECT_TRUE(ring.Empty());
  }
}

TEST(BoundedRing, IsFullInTimeHoweverSmall) {
  BoundedRing<int> ring(1);
  uint32_t pushed = 0;
  while (ring.HasRoom() && pushed < 10) pushed += ring.TryPush(7) ? 1 : 0;
  EXPECT_EQ(pushed, ring.capacity());
  EXPECT_FALSE(ring.TryPush(7));
}

// Every value comes once, and those of one pusher in their order.
TEST(BoundedRing, LosesNothingBetweenManyThreads) {
  constexpr int kPushers = 3, kEach = 20'000;
  BoundedRing<int> ring(8);
  std::vector<std::thread> pushers;
  for (int p = 0; p < kPushers; ++p) {
    pushers.emplace_back([&ring, p] {
      for (int i = 0; i < kEach; ++i) {
        while (!ring.TryPush(p * kEach + i)) std::this_thread::yield();
      }
    });
  }
  std::vector<int> next(kPushers, 0);
  for (int taken = 0; taken < kPushers * kEach; ++taken) {
    int value = -1;
    while (!ring.Pop(&value)) std::this_thread::yield();
    ASSERT_EQ(value % kEach, next[static_cast<size_t>(value / kEach)]++);
  }
  for (std::thread& pusher : pushers) pusher.join();
  EXPECT_TRUE(ring.Empty());
}

// The owner sleeps before each notice: one that did not make the descriptor readable would cost the
// whole time limit.
TEST(DoneQueue, WakesAnOwnerThatSaidItSleeps) {
  constexpr int kLimitMs = 10'000;
  constexpr uint32_t kNotices = 2'000;
  DoneQueue queue(4);
  std::atomic<uint32_t> room{4};
  std::thread worker([&] {
    for (uint32_t i = 0; i < kNotices; ++i) {
      while (room.load() == 0) std::this_thread::yield();
      room.fetch_sub(1);
      WorkDone done;
      done.name.chunk = i;
      queue.Push(done);
    }
  });
  std::vector<WorkDone> done;
  for (uint32_t seen = 0; seen < kNotices;) {
    queue.Arm();
    if (!queue.TakeAll(&done)) {
      pollfd ready{queue.event_fd(), POLLIN, 0};
      ASSERT_EQ(poll(&ready, 1, kLimitMs), 1) << "after " << seen;
      continue;
    }
    for (const WorkDone& notice : done) ASSERT_EQ(notice.name.chunk, seen++);
    room.fetch_add(static_cast<uint32_t>(done.size()));
  }
  worker.join();
}

TEST(DoneQueue, WritesNoEventWhileNobodySleeps) {
  DoneQueue queue(4);
  pollfd ready{queue.event_fd(), POLLIN, 0};
  queue.Push({});
  EXPECT_EQ(poll(&ready, 1, 0), 1) << "armed from the start";
  queue.Arm();
  queue.Push({});
  EXPECT_EQ(poll(&ready, 1, 0), 1);
  std::vector<WorkDone> done;
  EXPECT_TRUE(queue.TakeAll(&done));
  EXPECT_EQ(done.size(), 2U);
  queue.Arm();
  EXPECT_EQ(poll(&ready, 1, 0), 0);
}

TEST(DoneQueue, WakesAnOwnerThatWaitsForSeveralByTheLastOfThem) {
  DoneQueue queue(8);
  pollfd ready{queue.event_fd(), POLLIN, 0};
  queue.Push({});
  queue.Arm(3);
  for (int push = 1; push <= 4; ++push) {
    queue.Push({});
    EXPECT_EQ(poll(&ready, 1, 0), push < 3 ? 0 : 1) << push;
  }
  std::vector<WorkDone> done;
  EXPECT_TRUE(queue.TakeAll(&done));
  EXPECT_EQ(done.size(), 5U);
}

TEST(ThreadNice, GoesBelowAndBackWhereItMay) {
  std::thread([] {
    const int own = getpriority(PRIO_PROCESS, 0);
    ThreadNice nice;
    nice.Begin();
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
    const int below = nice.may_change() ? SCHED_IDLE : SCHED_OTHER;
    nice.SetBelow(true);
    EXPECT_EQ(sched_getscheduler(0), below);
    nice.SetBelow(false);
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
    nice.SetBelow(true);
    std::thread([&nice] { nice.Raise(); }).join();
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER) << "whoever waits for it has raised it";
    nice.SetBelow(true);
    EXPECT_EQ(sched_getscheduler(0), below) << "and it may go below again";
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
  }).join();
}

TEST(Tuning, IsOneOfTheCandidatesAndTakesNoLongerThanItMay) {
  const SteadyClock clock;
  for (const uint32_t workers : {1u, 2u}) {
    std::vector<std::byte> scratch(workers * kTuningScratchMin);
    const TuningResult result = MeasureTuning({.workers = workers}, scratch, clock);
    EXPECT_GE(result.rounds, 1U);
    EXPECT_GE(result.gain, 1.0);
    EXPECT_GT(result.tuning.prefetch_elements, 0U);
    EXPECT_LT(result.took_ns, 5 * kNsPerSecond) << "40 ms where the machine has nothing else to do";
  }
}

TEST(Tuning, IsTheDefaultWhereThereIsNoRoomToMeasure) {
  std::vector<std::byte> scratch(kTuningScratchMin - 1);
  const TuningResult result = MeasureTuning({}, scratch, SteadyClock());
  EXPECT_EQ(result.rounds, 0U);
  EXPECT_EQ(result.tuning, optim::Tuning{});
}

TEST(Tuning, IsReadFromText) {
  EXPECT_EQ(TuningFromText("auto").value(), std::nullopt);
  EXPECT_EQ(TuningFromText("1024").value(), (optim::Tuning{1024}));
  for (const char* bad : {"", "512,", "256,512", "-1", "99999", "512 "}) {
    EXPECT_EQ(TuningFromText(bad).status().id(), ErrorId::kConfigBadValue) << bad;
  }
}

TEST(WorkerTeam, EndsWithWorkStillQueued) {
  Undo undo;
  std::vector<float> sum(1 << 16, 0.0F);
  const std::vector<float> one(1 << 16, 1.0F);
  WorkerTeam team({.threads = 1, .clock = RealClock()}, undo.bytes);
  while (team.HasRoom()) team.Push(Accumulation(&sum, one));
}

}  // namespace update_test
}  // namespace tidepool::memserver

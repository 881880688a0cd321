// The whole daemon and its trainers as threads of one process, over the same rings: what the thread
// sanitizer can see.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/thin_job.h"

namespace tidepool::testing {
namespace in_process_test {

constexpr int64_t kSecond = kNsPerSecond;

ThinOptions Options(const DaemonInProcess& daemon, const std::string& name, uint32_t world = 1) {
  ThinOptions options;
  options.socket_dir = daemon.socket_dir();
  options.name = name;
  options.world = world;
  return options;
}

std::vector<Result<ThinResult>> NotRun(size_t count) {
  std::vector<Result<ThinResult>> results;
  for (size_t i = 0; i < count; ++i)
    results.emplace_back(Status(ErrorId::kInternal, "it did not run"));
  return results;
}

// All ranks of a job, each on a thread; the results in order of rank.
std::vector<Result<ThinResult>> RunRanks(const ThinOptions& base) {
  std::vector<Result<ThinResult>> results = NotRun(base.world);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < base.world; ++rank) {
    threads.emplace_back([&results, base, rank] {
      ThinOptions options = base;
      options.rank = rank;
      results[rank] = RunThinJob(options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(InProcess, OneRankTrainsAndLeavesNothingBehind) {
  const DaemonInProcess daemon;
  const auto result = RunThinJob(Options(daemon, "one"));
  ASSERT_TRUE(result.ok()) << result.status().Format();
  EXPECT_NE(result.value().hash, 0U);
  EXPECT_GT(result.value().last_grad_norm, 0);
  EXPECT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, 5 * kSecond), kNothing);
}

TEST(InProcess, TwoRunsOfOneJobEndWithTheSameBitsAndOtherOptionsWithOthers) {
  const DaemonInProcess daemon;
  const auto first = RunThinJob(Options(daemon, "a"));
  const auto second = RunThinJob(Options(daemon, "b"));
  ThinOptions longer = Options(daemon, "c");
  longer.steps += 1;
  const auto third = RunThinJob(longer);
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_EQ(first.value().hash, second.value().hash);
  EXPECT_NE(first.value().hash, third.value().hash);
}

TEST(InProcess, ThreeRanksAccumulateAndAgreeFromRunToRun) {
  const DaemonInProcess daemon;
  ThinOptions options = Options(daemon, "three", 3);
  options.chunk_elements = 48 * 100;
  options.micro_batches = 2;
  const auto first = RunRanks(options);
  const auto second = RunRanks(options);
  for (Rank rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(first[rank].ok()) << first[rank].status().Format();
    ASSERT_TRUE(second[rank].ok()) << second[rank].status().Format();
    EXPECT_EQ(first[rank].value().hash, second[rank].value().hash);
  }
  EXPECT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, 5 * kSecond), kNothing);
}

TEST(InProcess, SixteenBitJobsTrain) {
  const DaemonInProcess daemon;
  ThinOptions options = Options(daemon, "bf16");
  options.dtype = DType::kBF16;
  const auto first = RunThinJob(options);
  const auto second = RunThinJob(options);
  ASSERT_TRUE(first.ok()) << first.status().Format();
  ASSERT_TRUE(second.ok()) << second.status().Format();
  EXPECT_EQ(first.value().hash, second.value().hash);
}

TEST(InProcess, TwoJobsAtOnceDoNotChangeEachOther) {
  memserver::ServerOptions server = DaemonInProcess::SmallServer();
  server.settings.optimizer.threads = 2;
  server.settings.copy.threads = 1;
  const DaemonInProcess daemon(server);
  const auto alone = RunThinJob(Options(daemon, "alone"));
  ASSERT_TRUE(alone.ok()) << alone.status().Format();
  std::vector<Result<ThinResult>> results = NotRun(3);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back(
        [&, i] { results[i] = RunThinJob(Options(daemon, "job" + std::to_string(i))); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status().Format();
    EXPECT_EQ(result.value().hash, alone.value().hash);
  }
  EXPECT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, 5 * kSecond), kNothing);
}

// Shards of more than the 8 MiB that a copy thread takes at once: long and short ranges in turn, of
// all jobs and ranks at once, and only one of them has the helpers.
TEST(InProcess, JobsOfLargeChunksShareTheCopyHelpersAndTheWorkers) {
  for (const uint32_t copy_threads : {2u, 3u}) {
    memserver::ServerOptions server = DaemonInProcess::SmallServer();
    server.pool_bytes = 160 * kMiB;
    server.rcache_limit = 96 * kMiB;
    server.settings.optimizer.threads = 2;
    server.settings.copy.threads = copy_threads;
    server.settings.copy.together = true;
    const DaemonInProcess daemon(server);
    ThinOptions options = Options(daemon, "alone");
    options.steps = 3;
    options.chunks = 1;
    options.chunk_elements = 9 * kMiB / sizeof(float) + 16 * 1000;
    const auto alone = RunThinJob(options);
    ASSERT_TRUE(alone.ok()) << alone.status().Format();

    std::vector<Result<ThinResult>> results = NotRun(3);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < results.size(); ++i) {
      threads.emplace_back([&results, i, options]() mutable {
        options.name = "job" + std::to_string(i);
        results[i] = RunThinJob(options);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& result : results) {
      ASSERT_TRUE(result.ok()) << result.status().Format();
      EXPECT_EQ(result.value().hash, alone.value().hash);
    }
  }
}

TEST(InProcess, DescriptorsReturnToTheirNumber) {
  const DaemonInProcess daemon;
  ASSERT_TRUE(RunThinJob(Options(daemon, "first")).ok());  // lazily opened ones are open now
  ASSERT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, 5 * kSecond), kNothing);
  const size_t before = SettledDescriptors();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(RunThinJob(Options(daemon, "again")).ok());
  ASSERT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, 5 * kSecond), kNothing);
  EXPECT_EQ(SettledDescriptors(), before);
}

TEST(InProcess, AServerThatStopsTellsItsTrainersWhy) {
  auto daemon = std::make_unique<DaemonInProcess>();
  ThinOptions options = Options(*daemon, "endless");
  options.steps = 1'000'000;
  std::atomic<bool> running{false};
  options.after_step = [&](uint64_t) { running = true; };
  Result<ThinResult> result(Status(ErrorId::kInternal, "did not run"));
  std::thread trainer([&] { result = RunThinJob(options); });
  SteadyClock clock;
  while (!running) clock.SleepNs(kNsPerMs);
  const int64_t start = clock.NowNs();
  daemon.reset();
  trainer.join();
  EXPECT_LT(clock.NowNs() - start, kPromptNs);
  EXPECT_EQ(result.status().id(), ErrorId::kSessionEnded) << result.status().Format();
  EXPECT_NE(result.status().Format().find("stopping"), std::string::npos)
      << result.status().Format();
}

}  // namespace in_process_test
}  // namespace tidepool::testing

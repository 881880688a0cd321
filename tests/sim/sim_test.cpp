// Many seeds of the simulated world, each of at least 5,000 events; one in a hundred runs twice and
// must give the same hash. A broken invariant stops the process and names its seed: replay it with
// `sim_main SEED -v`.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/clock.h"
#include "base/log.h"
#include "tests/sim/many_seeds.h"

namespace tidepool::memserver {
namespace sim_test {

#ifdef TIDEPOOL_SANITIZED
constexpr uint64_t kSeeds = 6;  // sanitizers make a world dozens of times slower
#else
constexpr uint64_t kSeeds = 500;
#endif

TEST(Simulation, ManySeedsKeepEveryInvariant) {
  SetLogLevel(LogLevel::kError);
  const SteadyClock clock;
  const int64_t start = clock.NowNs();
  const SimReport sum = RunSeeds(1, kSeeds, kSimEvents);
  const double seconds =
      static_cast<double>(clock.NowNs() - start) / static_cast<double>(kNsPerSecond);
  std::printf("%s\n", Summary(sum, kSeeds, seconds).c_str());
  // A simulation in which nothing happens finds nothing.
  EXPECT_GE(sum.events, kSeeds * kSimEvents);
  EXPECT_GT(sum.steps_sealed, 30 * kSeeds);
  EXPECT_GT(sum.steps_skipped, kSeeds);
  EXPECT_GT(sum.rank_deaths, kSeeds);
  EXPECT_GT(sum.rejoins, 3 * kSeeds);
  EXPECT_GT(sum.server_deaths, 5 * kSeeds);
  EXPECT_GT(sum.stalls, kSeeds);
  EXPECT_GT(sum.deaths_in_recovery, kSeeds);
  EXPECT_GT(sum.hand_overs, kSeeds / 2);
  EXPECT_GT(sum.comebacks, 10 * kSeeds);
  EXPECT_GT(sum.saves, kSeeds / 3);
  EXPECT_GT(sum.refusals, 10 * kSeeds);
  EXPECT_GT(sum.cleared_slots, 5 * kSeeds);
  EXPECT_GT(sum.waits_seen, kSeeds);
  EXPECT_GT(sum.rare_paths, 100 * kSeeds);
  if (kSeeds < 1000) return;  // too few for what comes seldom
  EXPECT_GT(sum.pipelined_steps, kSeeds);
  EXPECT_GT(sum.waits_for_itself, kSeeds / 20);
  EXPECT_GT(sum.losses, kSeeds / 8);
  EXPECT_GT(sum.losses_in_renewal, kSeeds / 40);
  EXPECT_GT(sum.keeper_deaths, kSeeds / 4);
  EXPECT_GT(sum.nvme_requests, 20 * kSeeds);
  EXPECT_GT(sum.nvme_faults, kSeeds);
  EXPECT_GT(sum.abandoned, kSeeds / 100);
  EXPECT_GT(sum.nvme_deaths, kSeeds / 50);
  EXPECT_GT(sum.demotions, kSeeds / 40);
  EXPECT_GT(sum.demotions_dropped, kSeeds / 500);
  EXPECT_GT(sum.demotion_deaths, kSeeds / 500);
  EXPECT_GT(sum.frozen_fetched, 10 * kSeeds);
  EXPECT_GT(sum.frozen_rejected, kSeeds / 10);
  EXPECT_GT(sum.frozen_deaths, kSeeds / 50);
  EXPECT_GT(sum.damaged, kSeeds / 100);
  EXPECT_GT(sum.withheld, kSeeds / 100);
  for (size_t i = 0; i < sum.killed_at.size(); ++i) {
    EXPECT_GT(sum.killed_at[i], 0u) << "the server never died at " << kServerPoints[i];
  }
}

TEST(Simulation, ASeedRepeatsExactlyAndDiffersFromOthers) {
  SetLogLevel(LogLevel::kError);
  EXPECT_EQ(RunSeed(14, 1000, false).hash, RunSeed(14, 1000, false).hash);
  EXPECT_NE(RunSeed(14, 1000, false).hash, RunSeed(15, 1000, false).hash);
}

}  // namespace sim_test
}  // namespace tidepool::memserver

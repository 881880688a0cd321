// 200 seeds of the simulated world (20 under a sanitizer); a failing seed stops with its number: replay it with `sim_main SEED -v`.
#include <gtest/gtest.h>
#include "base/log.h"
#include "tests/sim/sim_world.h"

namespace tidepool::memserver {
namespace {

#ifdef TIDEPOOL_SANITIZED
constexpr uint64_t kSeeds = 20;  // sanitizers make a world ten times slower
#else
constexpr uint64_t kSeeds = 200;
#endif
constexpr uint32_t kTicks = 12000;

TEST(Simulation, ManySeedsKeepEveryInvariant) {
  SetLogLevel(LogLevel::kError);
  SimReport sum;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::printf("seed %llu\r", static_cast<unsigned long long>(seed));
    const SimReport report = RunSeed(seed, kTicks, false);
    sum.steps_sealed += report.steps_sealed;
    sum.steps_skipped += report.steps_skipped;
    sum.deaths += report.deaths;
    sum.rejoins += report.rejoins;
    sum.saves += report.saves;
    sum.refusals += report.refusals;
  }
  // A simulation in which nothing happens finds nothing.
  EXPECT_GT(sum.steps_sealed, 5 * kSeeds);
  EXPECT_GT(sum.steps_skipped, kSeeds / 8);
  EXPECT_GT(sum.deaths, 5 * kSeeds);
  EXPECT_GT(sum.rejoins, kSeeds);
  EXPECT_GT(sum.saves, kSeeds / 2);
  EXPECT_GT(sum.refusals, kSeeds);
}

TEST(Simulation, ASeedRepeatsExactly) {
  SetLogLevel(LogLevel::kError);
  for (const uint64_t seed : {3, 14, 159}) EXPECT_EQ(RunSeed(seed, kTicks, false).hash, RunSeed(seed, kTicks, false).hash) << seed;
}

}  // namespace
}  // namespace tidepool::memserver

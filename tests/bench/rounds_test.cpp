#include "bench/harness/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "bench/harness/crew.h"
#include "bench/harness/regime.h"

namespace tidepool::bench {
namespace rounds_test {

double Steady() {
  return 100;
}

// The round trips that are looked at, one after the other; the last one for ever.
RoundTrip Told(std::vector<double> nanoseconds) {
  return [nanoseconds, next = size_t{0}]() mutable {
    return nanoseconds[std::min(next++, nanoseconds.size() - 1)];
  };
}

TEST(BenchRounds, EachRoundBeginsWithAnotherWayAndTheFirstRoundDoesNotCount) {
  std::string order;
  Rounds rounds(0, Steady);
  const size_t a = rounds.AddWay([&] { order += 'a'; }, [&] { order += 'A'; });
  const size_t b = rounds.AddWay([&] { order += 'b'; });
  const size_t c = rounds.AddWay([&] { order += 'c'; });
  rounds.Run(3);
  EXPECT_EQ(order,
            "Aabc"
            "bcAa"
            "cAab"
            "Aabc");
  for (const size_t way : {a, b, c}) EXPECT_EQ(rounds.seconds(way).size(), 3u);
}

TEST(BenchRounds, RatiosAreTakenWithinARound) {
  Rounds rounds(0, Steady);
  const size_t way = rounds.AddWay([] {});
  const size_t peer = rounds.AddWay([] {});
  rounds.Run(5);
  const std::vector<double> ratios = rounds.Faster(way, peer);
  ASSERT_EQ(ratios.size(), 5u);
  for (size_t i = 0; i < ratios.size(); ++i)
    EXPECT_DOUBLE_EQ(ratios[i] * rounds.seconds(way)[i], rounds.seconds(peer)[i]);
}

TEST(BenchRounds, TheFastestIsTheWayWithTheLowestMedian) {
  Rounds rounds(0, Steady);
  std::vector<size_t> ways;
  for (int i = 0; i < 3; ++i) ways.push_back(rounds.AddWay([] {}));
  rounds.Run(5);
  const size_t fastest = rounds.FastestOf(ways);
  for (const size_t way : ways) EXPECT_LE(rounds.median(fastest), rounds.median(way));
  EXPECT_EQ(rounds.FastestOf({ways[1]}), ways[1]);
}

TEST(BenchRounds, AComparisonsRatioIsTheMedianWithItsQuartiles) {
  ::testing::internal::CaptureStdout();
  const char* argv[] = {"bench"};
  RowPrinter printer(1, argv, "help", Steady);
  AddComparison({.bench = "b",
                 .row = "r",
                 .value = 3,
                 .unit = "x",
                 .against = "y",
                 .ratios = {5, 1, 4, 2, 3},
                 .dropped = 2,
                 .factor = 2,
                 .target = 6},
                &printer);
  EXPECT_EQ(
      ::testing::internal::GetCapturedStdout(),
      R"({"bench":"b","row":"r","value":3,"unit":"x","against":"y","ratio":6,"target":6,"holds":true})"
      "\n"
      R"({"bench":"b","row":"r","spread":[4,8],"samples":5})"
      "\n"
      R"({"bench":"b","row":"r","round_trip_ns":[100,100],"dropped":2})"
      "\n");
}

TEST(BenchRounds, ARoundInWhichTheMachineChangedDoesNotCountAndAnotherOneStandsInForIt) {
  int runs = 0;
  Rounds rounds(0, Told({100, 110, 450, 460}));
  const size_t way = rounds.AddWay([&] { ++runs; });
  const size_t peer = rounds.AddWay([] {});
  rounds.Run(3);
  EXPECT_EQ(rounds.dropped(), 1U);
  EXPECT_EQ(runs, 1 + 3 + 1);
  EXPECT_EQ(rounds.seconds(way).size(), 3U);
  EXPECT_EQ(rounds.Faster(way, peer).size(), 3U);
}

TEST(BenchRounds, AMachineThatNeverKeepsStillIsToldAndItsLastRoundCounts) {
  bool fast = false;
  Rounds rounds(0, [&] { return (fast = !fast) ? 100.0 : 500.0; });
  const size_t way = rounds.AddWay([] {});
  rounds.Run(3);
  EXPECT_EQ(rounds.dropped(), 5U);
  EXPECT_EQ(rounds.seconds(way).size(), 1U);
}

TEST(BenchRounds, WithOneCpuEveryRoundCounts) {
  Rounds rounds(0, [] { return 0.0; });
  const size_t way = rounds.AddWay([] {});
  rounds.Run(2);
  EXPECT_EQ(rounds.dropped(), 0U);
  EXPECT_EQ(rounds.seconds(way).size(), 2U);
}

TEST(BenchRegime, ARowHasTheRoundTripsOnBothSidesOfIt) {
  RegimeWatch watch(Told({450, 120, 100}));
  const RegimeSpan first = watch.Look(), same = watch.Look();
  EXPECT_EQ(first.low_ns, 120);
  EXPECT_EQ(first.high_ns, 450);
  EXPECT_EQ(same.low_ns, 120) << "asked for in the same moment";
}

TEST(BenchRegime, ChangesByMoreThanAFactor) {
  EXPECT_TRUE(SameRegime(100, 100 * kRegimeFactor));
  EXPECT_TRUE(SameRegime(0, 0));
  EXPECT_FALSE(SameRegime(100, 101 * kRegimeFactor));
  EXPECT_FALSE(SameRegime(500, 110));
}

TEST(BenchCrew, EveryThreadDoesItsShareOnceARun) {
  Crew crew(3);
  ASSERT_EQ(crew.size(), 3u);
  std::array<std::atomic<int>, 3> runs{};
  for (int i = 0; i < 100; ++i) crew.Run([&](uint32_t index) { ++runs[index]; });
  for (const auto& of_thread : runs) EXPECT_EQ(of_thread.load(), 100);
}

TEST(BenchCrew, SharesAreWholeAndDisjoint) {
  Crew crew(3);
  uint64_t end = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    const auto [first, last] = crew.Share(i, 1000, 64);
    EXPECT_EQ(first, end);
    EXPECT_EQ(first % 64, 0u);
    end = last;
  }
  EXPECT_EQ(end, 1000u);
}

}  // namespace rounds_test
}  // namespace tidepool::bench

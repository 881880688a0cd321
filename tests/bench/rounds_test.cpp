#include "bench/rounds.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "bench/crew.h"

namespace tidepool::bench {
namespace rounds_test {

TEST(BenchRounds, EachRoundBeginsWithAnotherWayAndTheFirstRoundDoesNotCount) {
  std::string order;
  Rounds rounds;
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
  Rounds rounds(0);
  const size_t way = rounds.AddWay([] {});
  const size_t peer = rounds.AddWay([] {});
  rounds.Run(5);
  const std::vector<double> ratios = rounds.Faster(way, peer);
  ASSERT_EQ(ratios.size(), 5u);
  for (size_t i = 0; i < ratios.size(); ++i) EXPECT_DOUBLE_EQ(ratios[i] * rounds.seconds(way)[i], rounds.seconds(peer)[i]);
}

TEST(BenchRounds, TheFastestIsTheWayWithTheLowestMedian) {
  Rounds rounds;
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
  RowPrinter printer(1, argv, "help");
  AddComparison({.bench = "b", .row = "r", .value = 3, .unit = "x", .against = "y", .ratios = {5, 1, 4, 2, 3}, .factor = 2, .target = 6},
                &printer);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            R"({"bench":"b","row":"r","value":3,"unit":"x","against":"y","ratio":6,"target":6,"holds":true})"
            "\n"
            R"({"bench":"b","row":"r","spread":[4,8],"samples":5})"
            "\n");
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

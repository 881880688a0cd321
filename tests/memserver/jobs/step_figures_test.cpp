// StepFigures: times, percentiles, and what breaks a series of steps.
#include "memserver/jobs/step_figures.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/units.h"

namespace tidepool::memserver {
namespace step_figures_test {

constexpr int64_t kBegin = 1'000'000'000;

TEST(StepFigures, TheFirstSealIsTheEndOfNoMeasuredStep) {
  StepFigures figures;
  figures.Sealed(kBegin, false, std::nullopt);
  EXPECT_EQ(figures.Times().count, 0U);
  EXPECT_EQ(figures.last_seconds(), 0);
  figures.Sealed(kBegin + kNsPerSecond / 2, true, std::nullopt);
  EXPECT_EQ(figures.Times().count, 1U);
  EXPECT_EQ(figures.last_seconds(), 0.5);
  EXPECT_EQ(figures.skipped(), 1U);
}

TEST(StepFigures, TimeWithoutRanksIsPartOfNoStep) {
  StepFigures figures;
  figures.Sealed(kBegin, false, std::nullopt);
  figures.Interrupt();
  figures.Sealed(kBegin + 3600 * kNsPerSecond, false, std::nullopt);
  EXPECT_EQ(figures.Times().count, 0U);
}

TEST(StepFigures, PercentilesAreOfTheLastStepsAndTheHistogramOfAll) {
  StepFigures figures;
  int64_t now = kBegin;
  figures.Sealed(now, false, std::nullopt);
  for (int step = 0; step < 200; ++step) {  // long ones, which the next push out
    now += 20 * kNsPerSecond;
    figures.Sealed(now, false, std::nullopt);
  }
  for (int step = 1; step <= 128; ++step) {
    now += step * kNsPerMs;
    figures.Sealed(now, false, std::nullopt);
  }

  const StepTimes times = figures.Times();
  EXPECT_EQ(times.count, 328U);
  EXPECT_NEAR(times.p50, 0.064, 1e-6);
  EXPECT_NEAR(times.p99, 0.127, 1e-6);
  EXPECT_EQ(std::accumulate(times.buckets.begin(), times.buckets.end(), uint64_t{0}), 328U);
  EXPECT_EQ(times.buckets[13], 200U) << "above 10 and up to 25 s";
  EXPECT_EQ(times.buckets[0], 1U) << "a bound is in its bucket";
  EXPECT_NEAR(times.sum, 4000 + 128 * 129 / 2 * 1e-3, 1e-6);
}

TEST(StepFigures, WhatARankToldIsOfTheLastStepAlone) {
  StepFigures figures;
  figures.Sealed(kBegin, false, shm::StepFacts{.loss = 2, .tokens = 100});
  figures.Sealed(kBegin + 1, false, shm::StepFacts{.loss = 1, .tokens = 50});
  EXPECT_EQ(figures.facts()->loss, 1);
  EXPECT_EQ(figures.tokens(), 150U);
  figures.Sealed(kBegin + 2, false, std::nullopt);
  EXPECT_FALSE(figures.facts());
  EXPECT_EQ(figures.tokens(), 150U);
}

}  // namespace step_figures_test
}  // namespace tidepool::memserver

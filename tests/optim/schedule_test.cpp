#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tidepool::optim {
namespace schedule_test {

ScheduleSpec Spec(ScheduleKind kind) {
  return {kind, 1.0, 0.1, 10, 110};
}

TEST(Schedule, WarmsUpFromTheFirstStepOn) {
  for (ScheduleKind kind :
       {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine}) {
    EXPECT_DOUBLE_EQ(LearningRateAt(Spec(kind), 1), 0.1);
    EXPECT_DOUBLE_EQ(LearningRateAt(Spec(kind), 5), 0.5);
    EXPECT_DOUBLE_EQ(LearningRateAt(Spec(kind), 10), 1.0);
  }
}

TEST(Schedule, ConstantStays) {
  EXPECT_DOUBLE_EQ(LearningRateAt(Spec(ScheduleKind::kConstant), 1'000'000), 1.0);
}

TEST(Schedule, LinearFallsEvenly) {
  EXPECT_DOUBLE_EQ(LearningRateAt(Spec(ScheduleKind::kLinear), 60), 0.55);
  EXPECT_DOUBLE_EQ(LearningRateAt(Spec(ScheduleKind::kLinear), 35), 0.775);
}

TEST(Schedule, CosineFallsByHalfAWave) {
  EXPECT_DOUBLE_EQ(LearningRateAt(Spec(ScheduleKind::kCosine), 60), 0.55);
  EXPECT_DOUBLE_EQ(LearningRateAt(Spec(ScheduleKind::kCosine), 35),
                   0.1 + 0.9 * (0.5 + std::sqrt(0.125)));
}

TEST(Schedule, EndsAtTheLowestRate) {
  for (ScheduleKind kind : {ScheduleKind::kLinear, ScheduleKind::kCosine}) {
    EXPECT_DOUBLE_EQ(LearningRateAt(Spec(kind), 110), 0.1);
    EXPECT_DOUBLE_EQ(LearningRateAt(Spec(kind), 5000), 0.1);
  }
}

TEST(Schedule, NeverRisesAfterWarmUp) {
  for (ScheduleKind kind :
       {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine}) {
    for (uint64_t step = 10; step < 200; ++step)
      ASSERT_GE(LearningRateAt(Spec(kind), step), LearningRateAt(Spec(kind), step + 1));
  }
}

TEST(Schedule, WithoutWarmUpBeginsNearTheBase) {
  ScheduleSpec spec{ScheduleKind::kLinear, 1.0, 0.0, 0, 100};
  EXPECT_DOUBLE_EQ(LearningRateAt(spec, 1), 0.99);
  spec.kind = ScheduleKind::kConstant;
  EXPECT_DOUBLE_EQ(LearningRateAt(spec, 1), 1.0);
}

TEST(Schedule, NamesAreRead) {
  EXPECT_EQ(ScheduleFromName("constant").value(), ScheduleKind::kConstant);
  EXPECT_EQ(ScheduleFromName("linear").value(), ScheduleKind::kLinear);
  EXPECT_EQ(ScheduleFromName("cosine").value(), ScheduleKind::kCosine);
  EXPECT_EQ(ScheduleFromName("cosin").status().id(), ErrorId::kConfigBadValue);
}

TEST(Schedule, BadSpecsAreRefused) {
  EXPECT_TRUE(CheckSchedule(Spec(ScheduleKind::kCosine)).ok());
  EXPECT_TRUE(CheckSchedule({ScheduleKind::kConstant, 1e-3, 0, 100, 0}).ok());
  for (const ScheduleSpec& bad : {ScheduleSpec{ScheduleKind::kConstant, -1, 0, 0, 0},
                                  ScheduleSpec{ScheduleKind::kLinear, 1, 2, 0, 10},
                                  ScheduleSpec{ScheduleKind::kCosine, 1, 0, 11, 10},
                                  ScheduleSpec{ScheduleKind::kCosine, NAN, 0, 1, 10}}) {
    EXPECT_EQ(CheckSchedule(bad).id(), ErrorId::kConfigBadValue);
  }
}

}  // namespace schedule_test
}  // namespace tidepool::optim

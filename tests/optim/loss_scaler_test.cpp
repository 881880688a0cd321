#include "optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tidepool::optim {
namespace loss_scaler_test {

void GoodSteps(LossScaler& scaler, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) ASSERT_TRUE(scaler.Update(true));
}

TEST(LossScaler, BeginsAt65536) {
  EXPECT_EQ(LossScaler({}).scale(), 65536.0);
}

TEST(LossScaler, HalvesAtEachOverflowAndSkipsTheStep) {
  LossScaler scaler({});
  EXPECT_FALSE(scaler.Update(false));
  EXPECT_EQ(scaler.scale(), 32768.0);
  EXPECT_FALSE(scaler.Update(false));
  EXPECT_EQ(scaler.scale(), 16384.0);
  EXPECT_EQ(scaler.state().skipped_steps, 2U);
}

TEST(LossScaler, DoublesAfterTheWholeWindow) {
  LossScaler scaler({});
  GoodSteps(scaler, 1999);
  EXPECT_EQ(scaler.scale(), 65536.0);
  GoodSteps(scaler, 1);
  EXPECT_EQ(scaler.scale(), 131072.0);
  GoodSteps(scaler, 2000);
  EXPECT_EQ(scaler.scale(), 262144.0);
}

TEST(LossScaler, OverflowRestartsTheWindow) {
  LossScaler scaler({});
  GoodSteps(scaler, 1999);
  scaler.Update(false);
  GoodSteps(scaler, 1999);
  EXPECT_EQ(scaler.scale(), 32768.0);
  GoodSteps(scaler, 1);
  EXPECT_EQ(scaler.scale(), 65536.0);
}

TEST(LossScaler, StaysBetweenItsLimits) {
  LossScalerSpec spec;
  spec.growth_interval = 1;
  spec.max_scale = 131072;
  LossScaler scaler(spec);
  GoodSteps(scaler, 5);
  EXPECT_EQ(scaler.scale(), 131072.0);
  EXPECT_FALSE(scaler.at_minimum());
  for (int i = 0; i < 40; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 1.0);
  EXPECT_TRUE(scaler.at_minimum());
}

TEST(LossScaler, HysteresisForgivesUntilItIsUsedUp) {
  LossScalerSpec spec;
  spec.hysteresis = 2;
  spec.growth_interval = 10;
  LossScaler scaler(spec);
  EXPECT_FALSE(scaler.Update(false));
  EXPECT_EQ(scaler.scale(), 65536.0);
  EXPECT_FALSE(scaler.Update(false));
  EXPECT_EQ(scaler.scale(), 32768.0);
  EXPECT_FALSE(scaler.Update(false));
  EXPECT_EQ(scaler.scale(), 16384.0);
  GoodSteps(scaler, 10);
  EXPECT_FALSE(scaler.Update(false));
  EXPECT_EQ(scaler.scale(), 32768.0) << "growth restores the hysteresis";
}

TEST(LossScaler, GoesOnFromASavedState) {
  LossScaler one({});
  GoodSteps(one, 1500);
  one.Update(false);
  GoodSteps(one, 700);
  LossScaler two({}, one.state());
  for (int i = 0; i < 1300; ++i) {
    one.Update(true);
    two.Update(true);
    ASSERT_EQ(one.scale(), two.scale());
  }
  EXPECT_EQ(two.scale(), 65536.0);
  EXPECT_EQ(two.state().skipped_steps, 1U);
}

TEST(LossScaler, BadSpecsAreRefused) {
  EXPECT_TRUE(CheckLossScalerSpec({}).ok());
  LossScalerSpec below_minimum;
  below_minimum.initial_scale = 0.5;
  LossScalerSpec shrinking;
  shrinking.growth_factor = 0.5;
  LossScalerSpec rising;
  rising.backoff_factor = 2;
  LossScalerSpec no_window;
  no_window.growth_interval = 0;
  LossScalerSpec not_a_number;
  not_a_number.initial_scale = NAN;
  for (const LossScalerSpec& bad : {below_minimum, shrinking, rising, no_window, not_a_number}) {
    EXPECT_EQ(CheckLossScalerSpec(bad).id(), ErrorId::kConfigBadValue);
  }
}

}  // namespace loss_scaler_test
}  // namespace tidepool::optim

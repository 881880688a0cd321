#include "optim/kernels/float_mode.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

namespace tidepool::optim {
namespace float_mode_test {

TEST(FlushDenormals, IsOnForItsLifetimeOnly) {
  ASSERT_FALSE(FlushDenormals::IsOn());
  {
    FlushDenormals flush;
    EXPECT_TRUE(FlushDenormals::IsOn());
  }
  EXPECT_FALSE(FlushDenormals::IsOn());
}

TEST(FlushDenormals, ResultsAndOperandsCountAsZero) {
  volatile float smallest = std::numeric_limits<float>::min();
  volatile float denormal = std::numeric_limits<float>::denorm_min();
  volatile float half = 0.5F;
  volatile float large = 0x1p100F;
  EXPECT_GT(smallest * half, 0.0F);
  EXPECT_GT(denormal * large, 0.0F);
  FlushDenormals flush;
  EXPECT_EQ(smallest * half, 0.0F);
  EXPECT_EQ(denormal * large, 0.0F);
}

TEST(FlushDenormals, BelongsToOneThread) {
  FlushDenormals flush;
  bool on_elsewhere = true;
  bool on_inside = false;
  std::thread worker([&] {
    _mm_setcsr(0x1F80);  // a thread inherits its maker's mode: begin with the default
    on_elsewhere = FlushDenormals::IsOn();
    FlushDenormals inner;
    on_inside = FlushDenormals::IsOn();
  });
  worker.join();
  EXPECT_FALSE(on_elsewhere);
  EXPECT_TRUE(on_inside);
  EXPECT_TRUE(FlushDenormals::IsOn());
}

}  // namespace float_mode_test
}  // namespace tidepool::optim

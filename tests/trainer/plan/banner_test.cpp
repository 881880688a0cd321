#include "trainer/run/banner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "trainer/run/describe_plan.h"

namespace tidepool::trainer {
namespace banner_test {

class BannerTest : public ::testing::Test {
 protected:
  BannerTest() {
    options_.model.preset = "small";
    place_.world = place_.local_world = 2;
  }
  std::string Of(const RankPlace& place) const {
    const RunPlan plan = MakeRunPlan(options_, place.world, 0, "nightly").value();
    return Banner(plan, place,
                  {.data = "11 text files",
                   .device = device_,
                   .server = "memserver at /run/tidepool, 13 MiB reserved"});
  }

  RunOptions options_;
  RankPlace place_;
  std::string device_;
};

TEST_F(BannerTest, ThreeLinesSayWhatAndWhereAndOnWhat) {
  const std::string text = Of(place_);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
  EXPECT_TRUE(
      text.starts_with("tidepool  job nightly, 2 ranks; memserver at /run/tidepool, 13 MiB "
                       "reserved\nmodel     small: 834.3K parameters, fp32;"))
      << text;
  EXPECT_TRUE(text.ends_with("\ndata      11 text files\n")) << text;
  for (const char* not_there : {"NVMe", "started by", "none"})
    EXPECT_EQ(text.find(not_there), std::string::npos) << text;
}

TEST_F(BannerTest, AGpuIsNamedInTheSameThreeLines) {
  device_ = "GPU 0";
  const std::string text = Of(RankPlace());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
  EXPECT_NE(text.find("1 rank;"), std::string::npos) << text;
  EXPECT_NE(text.find("; GPU 0\n"), std::string::npos) << text;
}

TEST_F(BannerTest, TheLongOneHoldsTheWholePlan) {
  const RunPlan plan = MakeRunPlan(options_, 2, 0, "nightly").value();
  const std::string text = LongBanner(plan, place_, "11 text files");
  EXPECT_NE(text.find(DescribePlan(plan)), std::string::npos);
  EXPECT_NE(text.find("2 ranks (started by: " + place_.launcher + ")"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\ndata      11 text files\n"));
}

}  // namespace banner_test
}  // namespace tidepool::trainer

#include "base/buggify.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tidepool {
namespace buggify_test {

// Answers of `uses` uses of each of 100 places.
std::vector<int> Answers(uint64_t seed, int uses) {
  ArmBuggify(seed);
  std::vector<int> fired(100, 0);
  for (int place = 0; place < 100; ++place) {
    const std::string name = "test.place" + std::to_string(place);
    for (int use = 0; use < uses; ++use) fired[place] += TP_BUGGIFY(name.c_str()) ? 1 : 0;
  }
  DisarmBuggify();
  return fired;
}

TEST(Buggify, IsOffByDefaultAndAfterDisarming) {
  int fired = 0;
  for (int use = 0; use < 1000; ++use) fired += TP_BUGGIFY("test.place") ? 1 : 0;
  Answers(1, 10);
  for (int use = 0; use < 1000; ++use) fired += TP_BUGGIFY("test.place") ? 1 : 0;
  EXPECT_EQ(fired, 0);
}

TEST(Buggify, ArmsAQuarterOfThePlacesWhichFireInAQuarterOfTheirUses) {
  int armed = 0, fired = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    for (const int of_place : Answers(seed, 100)) {
      armed += of_place > 0 ? 1 : 0;
      fired += of_place;
    }
  }
  EXPECT_NEAR(armed, 250, 60);
  EXPECT_NEAR(fired, 25 * armed, 3 * armed);
}

TEST(Buggify, RepeatsForASeedAndDiffersBetweenSeeds) {
  EXPECT_EQ(Answers(5, 20), Answers(5, 20));
  EXPECT_NE(Answers(5, 20), Answers(6, 20));
}

TEST(Buggify, CountsItsFirings) {
  const std::vector<int> fired = Answers(7, 20);
  uint64_t sum = 0;
  for (const int of_place : fired) sum += static_cast<uint64_t>(of_place);
  EXPECT_EQ(BuggifyFirings(), sum);
}

}  // namespace buggify_test
}  // namespace tidepool

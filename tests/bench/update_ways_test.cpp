// That the ways which are timed against each other do the same work.
#include "bench/loops/update_ways.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "base/units.h"

namespace tidepool::bench {
namespace update_ways_test {

constexpr uint64_t kParameters = 512 * 1024;  // two pieces

struct Result {
  std::vector<float> master, momentum, variance;
  std::vector<uint16_t> param16;
};

class UpdateWaysTest : public ::testing::Test {
 protected:
  Result After(const std::function<void()>& way) {
    ways_.Fill({});
    way();
    const BenchPlanes& planes = ways_.planes();
    const auto copy = [](const auto* plane) { return std::vector(plane, plane + kParameters); };
    return {copy(planes.master), copy(planes.momentum), copy(planes.variance),
            copy(planes.param16)};
  }

  Crew crew_{2};
  UpdateWays ways_{kParameters, &crew_};
};

void ExpectNear(const std::vector<float>& one, const std::vector<float>& other, float bound) {
  for (size_t i = 0; i < one.size(); ++i)
    ASSERT_LE(std::abs(one[i] - other[i]), bound * (1 + std::abs(other[i]))) << "at " << i;
}

TEST_F(UpdateWaysTest, TheDaemonsWorkersTheTilesAndThePlainLoopGiveTheSameBits) {
  // Twice each: what a way leaves behind must not spare the next one its work.
  const Result plain = After([&] {
    ways_.UpdatePlain(kParameters);
    ways_.UpdatePlain(kParameters);
  });
  const Result safe = After([&] {
    ways_.UpdateSafe(kParameters);
    ways_.UpdateSafe(kParameters);
  });
  const Result team = After([&] {
    ways_.UpdateByTeam();
    ways_.UpdateByTeam();
  });
  const Result copies = After([&] {
    ways_.UpdatePart(UndoPart::kCopies);
    ways_.UpdatePart(UndoPart::kCopies);
  });
  const Result words = After([&] {
    ways_.UpdatePart(UndoPart::kWords);
    ways_.UpdatePart(UndoPart::kWords);
  });
  for (const Result& other : {safe, team, copies, words}) {
    EXPECT_EQ(other.master, plain.master);
    EXPECT_EQ(other.momentum, plain.momentum);
    EXPECT_EQ(other.variance, plain.variance);
    EXPECT_EQ(other.param16, plain.param16);
  }
}

TEST_F(UpdateWaysTest, TheEmulatedPassesDoTheSameStep) {
  const Result ours = After([&] { ways_.UpdateF32(); });
  const Result passes = After([&] { ways_.DeepSpeedPasses(); });
  ExpectNear(passes.master, ours.master, 1e-6F);
  ExpectNear(passes.momentum, ours.momentum, 1e-6F);
  ExpectNear(passes.variance, ours.variance, 1e-6F);
  for (size_t i = 0; i < kParameters; ++i) {
    const float rounded = __builtin_bit_cast(float, static_cast<uint32_t>(passes.param16[i]) << 16);
    ASSERT_LE(std::abs(rounded - passes.master[i]), std::abs(passes.master[i]) / 256) << "at " << i;
  }
}

TEST_F(UpdateWaysTest, TheProbeChangesEveryWord) {
  const Result before = After([] {}), after = After([&] { ways_.Probe(0); });
  for (size_t i = 0; i < kParameters; i += 2) {
    const bool changed =
        before.master[i] != after.master[i] || before.master[i + 1] != after.master[i + 1];
    ASSERT_TRUE(changed) << "at " << i;
  }
}

}  // namespace update_ways_test
}  // namespace tidepool::bench

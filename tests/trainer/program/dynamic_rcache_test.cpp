// `trainer run --dynamic-rcache`: all tensors of LibTorch, as its allocator counts them, and all
// blocks with memory stay within --device-memory, and the weights have the bits of any other run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/error_catalog.h"
#include "base/units.h"
#include "tests/trainer/program/trainer_runs.h"

namespace tidepool::testing {
namespace dynamic_rcache_test {

using ::testing::HasSubstr;

constexpr uint64_t kLimit = 2250 * kKiB;

class DynamicRcache : public TrainerRuns {
 protected:
  std::string Run(const std::string& name, Flags flags, int exit_code = kExitOk) const {
    flags.insert({{"--standalone", ""}, {"--steps", "4"}, {"--eval-every", "2"}, {"--job", "j"}});
    const auto trainer = Start(Words(name, flags), {"TMPDIR=" + place_.path()});
    const auto end = trainer->Wait(kRunNs);
    EXPECT_TRUE(end && end->exit_code == exit_code) << trainer->Output();
    return trainer->Output();
  }
  static Flags Dynamic() {
    return {{"--rcache", "auto"},
            {"--device-memory", std::to_string(kLimit)},
            {"--dynamic-rcache", ""}};
  }

  // A number of metrics.jsonl, by line that has it.
  std::vector<uint64_t> NumbersOf(const std::string& name, const std::string& key) const {
    const std::string wanted = "\"" + key + "\":";
    std::vector<uint64_t> numbers;
    std::ifstream lines(Out(name) + "/metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find(wanted);
      if (at != std::string::npos) numbers.push_back(std::stoull(line.substr(at + wanted.size())));
    }
    return numbers;
  }

  const TemporaryDirectory place_;
};

TEST_F(DynamicRcache, StaysWithinItsMemoryAndHasTheBitsOfAnyRun) {
  Run("fixed", {});
  Flags dynamic = Dynamic();
  dynamic.insert({"--verbose", ""});
  EXPECT_THAT(Run("dynamic", dynamic), HasSubstr("at moments at which operators"));
  EXPECT_GT(Weights("fixed").size(), 400'000U);
  EXPECT_TRUE(Weights("dynamic") == Weights("fixed"));
  EXPECT_EQ(Losses("dynamic"), Losses("fixed"));

  const std::vector<uint64_t> most = NumbersOf("dynamic", "memory_most");
  ASSERT_FALSE(most.empty());
  EXPECT_LE(most.back(), kLimit);
  EXPECT_GT(most.back(), kLimit / 2) << "what is not counted is no limit";
  for (const uint64_t random : NumbersOf("dynamic", "evictions_unforeseen")) EXPECT_EQ(random, 0U);
  EXPECT_TRUE(NumbersOf("fixed", "memory_most").empty());
}

TEST_F(DynamicRcache, WhereBlocksCannotChangeItIsRefused) {
  const auto refused = [this](const std::string& flag, const std::string& value) {
    Flags flags = Dynamic();
    flags.insert({{"--dry-run", ""}, {flag, value}});
    return Run("refused", flags, kExitUsage);
  };
  EXPECT_THAT(refused("--plan", "zero2"), HasSubstr("--plan zero2 has one size of the rCache"));
  EXPECT_THAT(refused("--preset", "moe-tiny"), HasSubstr("depends on the tokens"));
}

}  // namespace dynamic_rcache_test
}  // namespace tidepool::testing

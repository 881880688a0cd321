// `trainer estimate` of the rCache from outside: its picture, the loss in tiles, and limits that
// are too small.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error_catalog.h"
#include "tests/process/rig/child_process.h"

namespace tidepool::testing {
namespace plan_estimate_test {

using ::testing::HasSubstr;

class PlanEstimate : public ::testing::Test {
 protected:
  static constexpr int64_t kLimit = 60 * kNsPerSecond;

  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }
  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // `trainer estimate` of a preset and these words.
  static std::string Estimate(const std::vector<std::string>& words, int exit_code = kExitOk,
                              const std::string& preset = "small") {
    std::vector<std::string> command{TIDEPOOL_TRAINER, "estimate", "--preset", preset};
    command.insert(command.end(), words.begin(), words.end());
    ChildProcess trainer(command);
    const auto end = trainer.Wait(kLimit);
    EXPECT_TRUE(end && end->exit_code == exit_code) << trainer.Output();
    return trainer.Output();
  }

  // Activations of a step, as --rcache auto counts them.
  static int64_t Activations(const std::string& tiles) {
    const std::string output = Estimate({"--rcache", "auto", "--device-memory", "8GiB", "--batch",
                                         "2", "--json", "--vocab-tiles", tiles},
                                        kExitOk, "gpt2-124m");
    const auto json = boost::json::parse(output);
    return json.at_pointer("/choice/room/activation_bytes").to_number<int64_t>();
  }

  const TemporaryDirectory directory_;
};

TEST_F(PlanEstimate, DrawsTheRcacheOverAStep) {
  const std::string output = Estimate({"--plan", "zero3", "--svg", Path("plan.svg")});
  EXPECT_THAT(output, HasSubstr("\npicture   " + Path("plan.svg")));
  const std::string svg = Read(Path("plan.svg"));
  EXPECT_THAT(svg, HasSubstr("small, fp32: --plan zero3, rank 0 of 1"));
  for (const char* part : {"class=\"coming\"", "class=\"parameters\"", "class=\"gradients\"",
                           "class=\"resident\"", "the first gradient", "</svg>"})
    EXPECT_THAT(svg, HasSubstr(part));
}

// One block, and the order needs two.
TEST_F(PlanEstimate, AnRcacheBelowTheOrdersNamesOneThatWorks) {
  const std::vector<std::string> words{"--chunk-size", "256KiB", "--svg", Path("plan.svg"),
                                       "--rcache"};
  const auto with = [&words](const std::string& rcache) {
    std::vector<std::string> all = words;
    all.push_back(rcache);
    return all;
  };
  const std::string output = Estimate(with("393216"), kExitDeviceMemory);
  const std::string wanted = "give --rcache ";
  const size_t at = output.find(wanted);
  ASSERT_NE(at, std::string::npos) << output;
  const std::string named = std::to_string(std::stoull(output.substr(at + wanted.size())));
  EXPECT_THAT(Estimate(with(named)), HasSubstr("\npicture   "));
}

TEST_F(PlanEstimate, LeavesNoPictureWhereItCannotWrite) {
  EXPECT_THAT(Estimate({"--svg", Path("no/plan.svg")}, kExitFailed), HasSubstr("error[TP5005]"));
  EXPECT_THAT(Estimate({"--svg", "x", "--pipeline", "auto"}, kExitUsage),
              HasSubstr("--pipeline and --svg exclude each other"));
}

TEST_F(PlanEstimate, CountsTheLogitsOfOneTile) {
  EXPECT_LT(Activations("8"), Activations("1") * 3 / 4);
  const std::string output = Estimate({"--vocab-tiles", "60000"}, kExitUsage);
  EXPECT_THAT(output, HasSubstr("entries has no 60000 tiles"));
  EXPECT_THAT(output, HasSubstr("give --vocab-tiles "));
}

}  // namespace plan_estimate_test
}  // namespace tidepool::testing

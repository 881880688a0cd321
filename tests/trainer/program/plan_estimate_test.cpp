// `trainer estimate` of the rCache from outside: its picture, the loss in tiles, experts and their
// groups, and limits that are too small.
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
  static constexpr int64_t kLimit = 120 * kNsPerSecond;

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
  for (const char* part : {"class=\"ink-coming\"", "class=\"ink-held\"", "class=\"ink-going\"",
                           "class=\"ink-resident\"", "the first gradient", "</svg>"})
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

// What a run of 30 billion parameters moves, with 40 GB (37 GiB) of device memory for each rank.
struct OfThirtyBillion {
  uint64_t up, down;  // bytes of a step to one rank, and from it
  std::string output;
};
OfThirtyBillion ThirtyBillion(const std::string& output) {
  const auto json = boost::json::parse(output);
  EXPECT_LE(json.at_pointer("/rcache/bytes").to_number<uint64_t>(), 40'000'000'000U);
  return {json.at_pointer("/choice/step_bytes_to_rank").to_number<uint64_t>(),
          json.at_pointer("/choice/step_bytes_from_rank").to_number<uint64_t>(), output};
}

// Elixir v1 trains 30 billion parameters in 40 GB. With four ranks each has one sequence, as the
// one rank has.
TEST_F(PlanEstimate, FourRanksMoveAQuarterOfThirtyBillionParametersEach) {
  const auto estimate = [](const std::string& ranks, const std::string& ep) {
    return ThirtyBillion(
        Estimate({"--ranks", ranks, "--batch", ranks, "--moe", "ep=" + ep, "--dtype", "bf16",
                  "--checkpoint-activations", "--context", "2048", "--rcache", "auto",
                  "--device-memory", "37GiB", "--device", "cuda", "--json"},
                 kExitOk, "qwen-moe-30b"));
  };
  const OfThirtyBillion one = estimate("1", "1"), four = estimate("4", "1"),
                        shared = estimate("4", "4");
  const uint64_t weights = 2 * 30'532'000'000U;  // as BF16
  EXPECT_GT(one.up, weights) << "some are fetched again in backward";
  EXPECT_NEAR(four.up, one.up / 4.0, one.up / 4000.0);
  EXPECT_NEAR(four.down, one.down / 4.0, one.down / 4000.0);

  // Sharing ranks have a quarter of the experts each, so that all weights stay; chunks are padded.
  EXPECT_NEAR(shared.up, weights / 4.0, weights / 100.0);
  EXPECT_NEAR(shared.down, one.down / 4.0, one.down / 4000.0);
  EXPECT_THAT(shared.output, HasSubstr("\"ranks\":[2],"));
}

TEST_F(PlanEstimate, NamesTheGroupsOfExperts) {
  const std::string file = Path("layers.txt");
  std::ofstream(file) << "layers=0, experts=8, ep=4\nlayers=1-2, experts=4, ep=2\n"
                         "layers=3, experts=2, residual=yes\n";
  const std::string output = Estimate({"--ranks", "4", "--moe", file}, kExitOk, "llama-small");
  EXPECT_THAT(output, HasSubstr("all but experts, and experts 0-1 of block 3\n"));
  EXPECT_THAT(output, HasSubstr("          ranks 1,3: "));
  EXPECT_THAT(output, HasSubstr(": experts 2-3 of blocks 1-2\n"));
  EXPECT_THAT(output, HasSubstr("          rank 3: "));
  EXPECT_THAT(output, HasSubstr(": experts 6-7 of block 0\n"));
  EXPECT_THAT(output, HasSubstr("block 3: 2 experts, 2 a token, beside the MLP, dropless"));

  std::ofstream(file) << "layers=0, experts=8, ep=4\nlayers=9, experts=4\n";
  EXPECT_THAT(Estimate({"--ranks", "4", "--moe", file}, kExitUsage, "llama-small"),
              HasSubstr("line 2: layers=9: the model 'llama-small' has blocks 0 to 3"));
  std::ofstream(file) << "layers=0, experts=8, ep=4\nlayers=2, experts=6, ep=4\n";
  EXPECT_THAT(Estimate({"--ranks", "4", "--moe", file}, kExitUsage, "llama-small"),
              HasSubstr("6 experts in a block, which 4 ranks cannot share, in block 2"));
  EXPECT_THAT(Estimate({"--ranks", "2", "--moe", "experts=8,ep=4"}, kExitUsage, "llama-small"),
              HasSubstr("ep=4 ranks are to share experts, and there are 2"));
}

// Moments of the order need chunks of a tile's size: so the fewest blocks are smaller, too.
TEST_F(PlanEstimate, TilesOfLinearLayersMakeSmallerChunks) {
  const auto bytes = [](const std::vector<std::string>& words, const char* which) {
    std::vector<std::string> all{"--plan", "zero3", "--json"};
    all.insert(all.end(), words.begin(), words.end());
    const auto json = boost::json::parse(Estimate(all, kExitOk, "gpt2-774m"));
    return json.at_pointer(which).to_number<int64_t>();
  };
  const std::vector<std::string> tiles{"--tile-linear", "2MiB"};  // positions take 5 MiB
  EXPECT_LE(bytes(tiles, "/chunk_bytes") * 4, bytes({}, "/chunk_bytes"));
  const auto blocks = [&](const std::vector<std::string>& words) {
    return bytes(words, "/rcache/bytes") - bytes(words, "/rcache/resident_bytes");
  };
  EXPECT_LE(blocks(tiles) * 4, blocks({}));
  EXPECT_THAT(
      Estimate({"--tile-linear", "64KiB"}),
      HasSubstr("\ntiles     12 linear layers are cut into 44 parameters of at most 64.0 KiB\n"));

  const std::string small = Estimate({"--tile-linear", "1KiB"}, kExitUsage);
  EXPECT_THAT(small, HasSubstr("a tile of 1.00 KiB holds no row of a layer"));
  EXPECT_THAT(small, HasSubstr("give a size from 2048 on and below "));
  EXPECT_THAT(Estimate({"--tile-linear", "some"}, kExitUsage), HasSubstr("--tile-linear some"));
  EXPECT_THAT(Estimate({"--tile-linear", "1GiB"}, kExitUsage),
              HasSubstr("no linear layer of a block is larger"));
  EXPECT_THAT(Estimate({"--tile-linear", "64KiB", "--lora-rank", "2"}, kExitUsage),
              HasSubstr("--tile-linear is for models that are trained as a whole"));
}

}  // namespace plan_estimate_test
}  // namespace tidepool::testing

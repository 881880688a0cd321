// `trainer estimate --pipeline` from outside: what it prints and writes, and what it says of flags
// that cannot be meant.
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
namespace pipeline_estimate_test {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class PipelineEstimate : public ::testing::Test {
 protected:
  static constexpr int64_t kLimit = 60 * kNsPerSecond;

  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }
  std::string File(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Two GPUs of a small machine, one a root complex.
  std::string Machine() const {
    return File("machine.json",
                R"({"origin": "a small machine", "gpu_memory": "64MiB", "tflops": 0.5,
                    "root_complexes": [{"gpus": 1, "gb_per_s": 1}, {"gpus": 1, "gb_per_s": 1}]})");
  }

  // `trainer estimate --preset small` and these words.
  static std::string Estimate(const std::vector<std::string>& words, int exit_code = kExitOk) {
    std::vector<std::string> command{TIDEPOOL_TRAINER, "estimate", "--preset", "small"};
    command.insert(command.end(), words.begin(), words.end());
    ChildProcess trainer(command);
    const auto end = trainer.Wait(kLimit);
    EXPECT_TRUE(end && end->exit_code == exit_code) << trainer.Output();
    return trainer.Output();
  }
  static void ExpectUsage(const std::vector<std::string>& words, const std::string& text) {
    const std::string output = Estimate(words, kExitUsage);
    EXPECT_THAT(output, HasSubstr("error[TP"));
    EXPECT_THAT(output, HasSubstr(text));
    EXPECT_THAT(output, HasSubstr("\n   fix:   "));
  }

  const TemporaryDirectory directory_;
};

TEST_F(PipelineEstimate, PrintsThePlanAndWritesPictureAndProgram) {
  const std::string output =
      Estimate({"--pipeline", "auto", "--accumulate", "2", "--batch", "4", "--topology", Machine(),
                "--timeline", Path("step.svg"), "--lp", Path("stages.lp")});
  EXPECT_THAT(output, StartsWith("pipeline  small: "));
  EXPECT_THAT(output, HasSubstr(" on 2 GPUs (1+1), 2 micro-batches of 4 sequences of 64 tokens"));
  EXPECT_THAT(output, HasSubstr("machine   a small machine; 1.0 GB/s a root complex"));
  for (const char* line :
       {"\nstages ", "\nchosen ", "\nmapping ", "\nstep ", "\nbytes ", "\nZeRO-3 ", "\nhost ",
        "\ntimeline ", "\nGPU 0 ", "\nGPU 1 ", "\nup 0 ", "\ndown 1 "})
    EXPECT_THAT(output, HasSubstr(line));
  EXPECT_THAT(output, Not(HasSubstr("\nsearch "))) << "only with --verbose";

  const std::string picture = Read(Path("step.svg"));
  EXPECT_THAT(picture, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(picture, HasSubstr("<rect class=\"ink-complete\"")) << "work of backward";
  const std::string program = Read(Path("stages.lp"));
  EXPECT_THAT(program, HasSubstr("4 layers, 2 GPUs, 2 micro-batches"));
  EXPECT_THAT(program, HasSubstr("\nEnd\n"));
}

TEST_F(PipelineEstimate, IsTheSameEveryTime) {
  const std::vector<std::string> words{"--pipeline", "3",       "--accumulate", "2",
                                       "--topology", Machine(), "--verbose"};
  const auto plan = [&] {
    std::string output = Estimate(words);
    const size_t search = output.find("\nsearch ");  // how long it took
    EXPECT_NE(search, std::string::npos);
    return output.erase(search, output.find('\n', search + 1) - search);
  };
  const std::string first = plan();
  EXPECT_THAT(first, HasSubstr(": 3 stages of 4 layers"));
  EXPECT_EQ(plan(), first);
}

TEST_F(PipelineEstimate, SpeaksJson) {
  const std::string output =
      Estimate({"--pipeline", "auto", "--accumulate", "2", "--topology", Machine(), "--json"});
  const boost::json::object json = boost::json::parse(output).as_object();
  EXPECT_EQ(json.at("gpus").as_int64(), 2);
  EXPECT_GT(json.at("step_ns").as_int64(), 0);
}

// Nobody is told a rate as if it were their machine's.
TEST_F(PipelineEstimate, SaysThatNothingIsKnownOfTheMachineWithoutATopology) {
  const std::string output = Estimate({"--pipeline", "auto", "--ranks", "2"});
  EXPECT_THAT(output, HasSubstr("machine   nothing is known of yours (--topology FILE)"));
  EXPECT_THAT(output, HasSubstr("1 stage of 4 layers on 2 GPUs (2), 1 micro-batch of"));
  EXPECT_THAT(output, HasSubstr("1 GPU would have nothing to do, as more stages take longer"));
}

TEST_F(PipelineEstimate, ThatCannotBeMeantSaysWhy) {
  ExpectUsage({"--topology", Machine()}, "--topology needs --pipeline");
  ExpectUsage({"--lp", "x"}, "--lp needs --pipeline");
  ExpectUsage({"--timeline", "x"}, "--timeline needs --pipeline");
  ExpectUsage({"--pipeline", "many"}, "\"many\" is no number of stages");
  ExpectUsage({"--pipeline", "0"}, "\"0\" is no number of stages");
  ExpectUsage({"--pipeline", "-3"}, "\"-3\" is no number of stages");
  ExpectUsage({"--pipeline", "1", "--ranks", "2"}, "1 stage for 2 GPUs");
  ExpectUsage({"--pipeline", "5", "--ranks", "2"}, "5 stages of 4 layers");
  ExpectUsage({"--pipeline", "auto", "--ranks", "17"}, "at most --ranks 16");
  ExpectUsage({"--pipeline", "auto", "--ranks", "3", "--topology", Machine()},
              "--ranks 3, and 2 GPUs in the topology");
  ExpectUsage({"--pipeline", "auto", "--lora-rank", "4"}, "--lora-rank has no meaning");
  ExpectUsage({"--pipeline", "auto", "--device-memory", "lots"}, "--device-memory lots");
  ExpectUsage({"--pipeline", "auto", "--topology", Path("none.json")}, "cannot read");
  ExpectUsage({"--pipeline", "auto", "--topology", File("bad.json", "{")}, "not a JSON object");
}

TEST_F(PipelineEstimate, ThatDoesNotFitNamesTheLayerAndTheMemory) {
  const std::string output = Estimate(
      {"--pipeline", "auto", "--ranks", "2", "--device-memory", "1MiB"}, kExitDeviceMemory);
  EXPECT_THAT(output, HasSubstr("error[TP2303]: layer 1 of 4 needs "));
  EXPECT_THAT(output, HasSubstr("take a smaller --batch"));
}

TEST_F(PipelineEstimate, LeavesNoFileWhereItCannotWrite) {
  const std::string output =
      Estimate({"--pipeline", "auto", "--timeline", Path("no/step.svg")}, kExitFailed);
  EXPECT_THAT(output, HasSubstr("error[TP5005]"));
  EXPECT_THAT(output, Not(HasSubstr("timeline ")));
}

}  // namespace pipeline_estimate_test
}  // namespace tidepool::testing

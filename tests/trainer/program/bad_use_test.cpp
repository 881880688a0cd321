// Wrong use of the trainer program: every case ends with what, where and what to do on stderr, and
// with its documented exit code, before any training.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error_catalog.h"
#include "tests/fakes/fake_cuda/fake_cuda.h"
#include "tests/process/rig/child_process.h"

namespace tidepool::testing {
namespace bad_use_test {

constexpr int64_t kLimit = 60 * kNsPerSecond;

struct Case {
  std::vector<std::string> words;
  int exit_code;
  std::vector<std::string> texts;
  std::vector<std::string> environment = {};
};

class TrainerBadUse : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }
  std::string File(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  static void Expect(const Case& bad) {
    std::vector<std::string> command{TIDEPOOL_TRAINER};
    command.insert(command.end(), bad.words.begin(), bad.words.end());
    ChildProcess trainer(command, bad.environment);
    const auto end = trainer.Wait(kLimit);
    const std::string output = trainer.Output();
    ASSERT_TRUE(end) << output;
    EXPECT_EQ(end->exit_code, bad.exit_code) << output;
    std::vector<std::string> texts = bad.texts;
    // Not from the beginning of a line: the first of several ranks to fail may have a prefix.
    texts.insert(texts.end(), {"error[TP", "   where: ", "   fix:   "});
    for (const std::string& text : texts)
      EXPECT_NE(output.find(text), std::string::npos) << "'" << text << "' is missing in:\n"
                                                      << output;
    EXPECT_EQ(output.find("step 1/"), std::string::npos) << "it was found out too late:\n"
                                                         << output;
  }

  const TemporaryDirectory directory_;
};

TEST_F(TrainerBadUse, WrongFlagsAreNamedWithTheNearestRightOne) {
  Expect({{"rnu"}, kExitUsage, {"TP1001", "unknown command \"rnu\"", "did you mean \"run\"?"}});
  Expect(
      {{"run", "--stepps", "5"}, kExitUsage, {"TP1001", "--stepps", "did you mean \"--steps\"?"}});
  Expect({{"run", "--dtype", "fp8"}, kExitUsage, {"TP1001", "--dtype: fp8"}});
  Expect({{"launch", "-n", "0", "--", "run"}, kExitUsage, {"TP1001", "--ranks", "1 to 64"}});
}

TEST_F(TrainerBadUse, WhatIsNoPipelineOfSeveralRanksIsRefused) {
  const std::string one_gpu = File("machine.json", R"({"origin": "small", "gpu_memory": "64MiB",
      "tflops": 0.5, "root_complexes": [{"gpus": 1, "gb_per_s": 1}]})");
  const auto expect = [](const char* ranks, std::vector<std::string> flags, int exit_code,
                         std::vector<std::string> texts) {
    std::vector<std::string> words{"launch",       "-n",       ranks,   "--",        "run",
                                   "--standalone", "--preset", "small", "--pipeline"};
    words.insert(words.end(), flags.begin(), flags.end());
    Expect({std::move(words), exit_code, std::move(texts)});
  };
  expect("3", {"2"}, kExitUsage, {"TP1001", "2 stages for 3 ranks", "--pipeline 3"});
  expect("2", {"5"}, kExitUsage, {"TP1001", "5 stages, and the model has 4 layers"});
  expect("5", {"auto"}, kExitUsage, {"TP1001", "5 ranks, and the model has 4 layers"});
  expect("2", {"2", "--topology", one_gpu}, kExitUsage,
         {"TP1001", "1 GPU in the topology, and 2 ranks"});
  expect("2", {"2", "--device-memory", "1MiB"}, 20, {"TP2303"});
  expect("3", {"3", "--columns", "2"}, kExitUsage, {"TP1001", "3 ranks cannot be 2 columns"});
  expect("4", {"1", "--columns", "2"}, kExitUsage, {"TP1001", "1 stage for 2 ranks"});
  Expect({{"run", "--preset", "tiny", "--columns", "2"}, kExitUsage, {"TP1001", "--pipeline"}});
}

TEST_F(TrainerBadUse, AFolderWithoutAWholeCheckpointIsNamed) {
  std::filesystem::create_directory(Path("saves"));
  Expect({{"run", "--preset", "tiny", "--standalone", "--resume", "latest", "--checkpoint-dir",
           Path("saves"), "--checkpoint-every", "2"},
          kExitCorrupt,
          {"TP5006", "there is no whole checkpoint", "leave --resume out to begin at step 1"}});
}

TEST_F(TrainerBadUse, TheFixNamesTheFlagToChange) {
  Expect({{"run", "--steps", "3", "--steps", "4"},
          kExitUsage,
          {"TP1001", "--steps is given 2 times", "leave all but one --steps out"}});
  Expect({{"run", "--steps"},
          kExitUsage,
          {"TP1001", "--steps stands without its value", "give --steps a value"}});
  Expect(
      {{"run", "--preset", "tiny", "--pipeline", "2", "--plan", "zero3"},
       kExitUsage,
       {"TP1001", "--plan and --pipeline exclude each other", "leave --plan or --pipeline out"}});
}

TEST_F(TrainerBadUse, ValuesThatDoNotFitAreNamedWithWhatWouldDo) {
  Expect({{"run", "--preset", "gpt5"}, kExitUsage, {"TP1001", "--preset gpt5", "gpt2-124m"}});
  Expect({{"run", "--preset", "tiny", "--context", "4096"},
          kExitUsage,
          {"TP1001", "--context 4096", "at most --context 64"}});
  Expect({{"run", "--preset", "tiny", "--rcache", "lots"},
          kExitUsage,
          {"TP1104", "\"lots\"", "--rcache"}});
  Expect({{"run", "--preset", "tiny", "--rcache", "1KiB"},
          kExitDeviceMemory,
          {"TP4001", "--rcache 1KiB", "at least --rcache"}});
  Expect({{"run", "--preset", "tiny", "--server-timeout", "soon"},
          kExitUsage,
          {"TP1104", "--server-timeout", "\"soon\""}});
  Expect({{"run", "--preset", "tiny", "--resume", "auto"}, kExitUsage, {"TP1001", "--job NAME"}});
}

TEST_F(TrainerBadUse, AnRcacheThatCannotBeChosenSaysWhatIsMissing) {
  Expect({{"run", "--preset", "tiny", "--rcache", "auto", "--standalone"},
          kExitUsage,
          {"TP1001", "--rcache auto", "--device-memory SIZE"}});
  Expect({{"run", "--preset", "tiny", "--rcache", "auto", "--device-memory", "500KiB"},
          kExitDeviceMemory,
          {"TP4001", "--rcache auto", "activations", "tokens", "--checkpoint-activations"}});
  Expect({{"estimate", "--preset", "tiny", "--rates", "r.json"},
          kExitUsage,
          {"TP1001", "--rates says nothing without --rcache auto or --plan"}});
}

TEST_F(TrainerBadUse, APlanThatDoesNotExistOrFitIsNamedWithTheNumberThatWould) {
  Expect({{"run", "--plan", "zero4"}, kExitUsage, {"TP1001", "--plan: zero4", "zero2"}});
  for (const char* plan : {"ddp", "zero2"}) {
    Expect({{"run", "--preset", "tiny", "--plan", plan, "--rcache", "50%", "--standalone"},
            kExitDeviceMemory,
            {"TP4001", "--plan " + std::string(plan) + " needs an rCache of ", "--rcache 50% is ",
             "give --rcache ", "--plan zero3, which needs ", "--plan auto"}});
  }
  Expect({{"estimate", "--preset", "tiny", "--plan", "zero2", "--device-memory", "500KiB"},
          kExitDeviceMemory,
          {"TP4001", "--plan zero2", "beside activations"}});
  Expect({{"run", "--preset", "tiny", "--plan", "auto", "--standalone"},
          kExitUsage,
          {"TP1001", "--rcache auto", "--device-memory SIZE", "--rcache SIZE is a limit too"}});
}

TEST_F(TrainerBadUse, RatesThatNobodyHasMeasuredOrOfAnotherMachineAreNamed) {
  Expect({{"rates", "--socket-dir", directory_.path()},
          kExitUsage,
          {"TP1101", "no rates of this machine", "no job for 10 s", "--measure-rates off"}});
  const std::string other =
      File("rates.json", R"({"origin": "x", "machine": "another", "device": "cpu", "rates": [)"
                         R"({"ranks": 1, "to_device_gb_per_s": 1, "from_device_gb_per_s": 1}]})");
  Expect({{"estimate", "--preset", "tiny", "--plan", "auto", "--rcache", "50%", "--rates", other},
          kExitUsage,
          {"TP1104", "of another machine: another; this is ", "leave --rates out"}});
}

TEST_F(TrainerBadUse, AdaptersThatHaveNoBaseOrNoSizeAreNamed) {
  Expect({{"run", "--lora-rank", "8", "--preset", "tiny", "--standalone"},
          kExitUsage,
          {"TP1001", "--lora-rank 8 without a base", "--base DIR"}});
  Expect({{"run", "--lora-rank", "0", "--base", "x"},
          kExitUsage,
          {"TP1001", "--lora-rank", "not in range 1 to 65536"}});
  Expect({{"run", "--base", "/nowhere", "--lora-rank", "8"},
          kExitNotFound,
          {"TP5001", "there is no /nowhere", "--base /nowhere", "give --base"}});
  Expect({{"run", "--base", "x", "--preset", "tiny"},
          kExitUsage,
          {"TP1001", "--preset and --base exclude each other", "leave --preset or --base out"}});
  Expect({{"estimate", "--preset", "tiny", "--lora-rank", "65"},
          kExitUsage,
          {"TP1001", "--lora-rank 65", "from 1 to 64"}});
  Expect({{"estimate", "--preset", "tiny", "--lora-rank", "8", "--lora-targets", "c_attn"},
          kExitUsage,
          {"TP1001", "\"c_attn\"", "attn.c_attn"}});
}

// The same before a run, before the ranks of one are started, and without one.
TEST_F(TrainerBadUse, OneValidationServesRunDryRunLaunchAndEstimate) {
  const std::string unknown = File("t.bin", std::string(2000, '\x7f'));  // ids of 32639
  const std::vector<std::vector<std::string>> runs{
      {"run"}, {"run", "--dry-run"}, {"launch", "-n", "2", "--", "run"}};
  const auto expect_of_each = [&runs](bool estimates, const std::vector<std::string>& flags,
                                      int exit_code, std::vector<std::string> texts) {
    std::vector<std::vector<std::string>> commands = runs;
    if (estimates) commands.push_back({"estimate"});
    for (std::vector<std::string> words : commands) {
      words.insert(words.end(), {"--preset", "tiny"});
      words.insert(words.end(), flags.begin(), flags.end());
      Expect({words, exit_code, texts});
    }
  };
  expect_of_each(true, {"--data", unknown}, kExitUsage, {"TP5002", "token 0 of", "has id 32639"});
  expect_of_each(false, {"--weight-decay", "-5"}, kExitUsage,
                 {"TP1001", "--weight-decay: -5 is not in range 0 to 1000"});
  expect_of_each(false, {"--job", "a b"}, kExitUsage, {"TP1001", "--job a b", "letters"});
  expect_of_each(false, {"--out", unknown + "/out"}, kExitFailed,
                 {"TP5005", "--out " + unknown + "/out", "Not a directory"});
}

TEST_F(TrainerBadUse, DataThatCannotBeReadIsNamed) {
  Expect({{"run", "--data", "/nowhere"},
          kExitNotFound,
          {"TP5001", "'/nowhere' does not exist", "--data /nowhere"}});
  const std::string empty = File("empty.txt", ""),
                    binary = File("binary.txt", std::string("abc\0def", 7));
  Expect({{"run", "--data", empty}, kExitUsage, {"TP5002", "is empty", "--data " + empty}});
  Expect({{"run", "--data", binary}, kExitUsage, {"TP5002", "byte 3 is NUL", "--data " + binary}});
  Expect({{"launch", "-n", "2", "--", "run", "--data", "/nowhere"},
          kExitNotFound,
          {"TP5001", "--data /nowhere"}});
  Expect({{"sample", directory_.path(), "Once"},
          kExitNotFound,
          {"TP5001", directory_.path() + "/config.json", "--save DIR"}});
}

TEST_F(TrainerBadUse, NoServerNoRoomAndNoPlaceForResultsAreFoundBeforeTheFirstStep) {
  const std::vector<std::string> run{"run", "--preset",     "tiny", "--steps",
                                     "1",   "--eval-every", "0"};
  const auto with = [&run](std::vector<std::string> more) {
    more.insert(more.begin(), run.begin(), run.end());
    return more;
  };
  Expect({with({"--socket-dir", directory_.path()}),
          kExitNoServer,
          {"TP3001", directory_.path() + "/data.sock", "--standalone"}});
  Expect({with({"--standalone", "--pool", "1000TiB"}),
          kExitHostMemory,
          {"TP2001", "1000 TiB", "trainer estimate"}});
  Expect(
      {with({"--standalone", "--pool", "1MiB"}), kExitRefused, {"TP2101", "1.00 MiB", "--pool"}});
  Expect(
      {with({"--standalone", "--out", "/proc/none"}), kExitFailed, {"TP5005", "--out /proc/none"}});
  Expect({with({"--standalone", "--save", "/proc/none"}),
          kExitFailed,
          {"TP5005", "--save /proc/none"}});
  const std::string file = File("file", "");
  Expect({with({"--standalone", "--save", file}),
          kExitFailed,
          {"TP5005", "--save " + file, "Not a directory"}});
  Expect({with({"--standalone", "--trace", file + "/t.json"}),
          kExitFailed,
          {"TP5005", "--trace " + file + "/t.json", "Not a directory"}});
}

TEST_F(TrainerBadUse, AnEnvironmentThatNoLauncherMakesIsNamed) {
  Expect({{"run"},
          kExitUsage,
          {"TP1001", "rank 3 of 2", "RANK and WORLD_SIZE"},
          {"RANK=3", "WORLD_SIZE=2"}});
  Expect({{"run"},
          kExitUsage,
          {"TP1001", "MASTER_ADDR is not set", "trainer launch"},
          {"RANK=0", "WORLD_SIZE=2"}});
}

// The stand-in for the driver is enough to choose a GPU, and too little for LibTorch, whose CUDA
// part may not even have its libraries here.
TEST_F(TrainerBadUse, AGpuThatLibTorchCannotUseIsNamed) {
  const std::string driver = "LD_LIBRARY_PATH=" + fake_cuda::FakeCuda::Folder();
  Expect({{"run", "--preset", "tiny", "--device", "gpu"},
          kExitUsage,
          {"TP1001", "--device \"gpu\"", "cuda:0"}});
  Expect({{"run", "--preset", "tiny", "--device", "cuda"},
          kExitHostUnfit,
          {"TP2301", "LibTorch's CUDA part cannot be used"},
          {driver}});
  // Loaded before the profile of a step, whose operators would fix LibTorch's answer to "none".
  Expect({{"run", "--preset", "gpt2-774m", "--device", "cuda", "--rcache", "auto"},
          kExitHostUnfit,
          {"TP2301", "LibTorch's CUDA part cannot be used"},
          {driver}});
  Expect({{"estimate", "--preset", "gpt2-774m", "--device", "cuda", "--rcache", "auto"},
          kExitDeviceMemory,
          {"TP4001", "of 1.00 GiB (as the driver says): activations ", "one chunk that stands in"},
          {driver}});
  Expect({{"doctor", "--device", "cuda"},
          kExitHostUnfit,
          {"TP2301", "Fake GPU", "LibTorch's CUDA part cannot be used"},
          {driver}});
}

}  // namespace bad_use_test
}  // namespace tidepool::testing

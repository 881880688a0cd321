#include "trainer/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/error_catalog.h"
#include "tests/trainer/data/data_files.h"

namespace tidepool::trainer {
namespace flags_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FlagsTest : public ::testing::Test {
 protected:
  // What `trainer WORDS...` means; nothing when it ends at once, then with exit_code_.
  std::optional<CommandLine> Parse(std::vector<std::string> words) {
    words.insert(words.begin(), "trainer");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    CommandLine line;
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const bool goes_on =
        ParseCommandLine(static_cast<int>(argv.size()), argv.data(), &line, &exit_code_);
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return goes_on ? std::optional(line) : std::nullopt;
  }
  int exit_code_ = -1;
  std::string out_, err_;
};

TEST_F(FlagsTest, CompletionsAndTheVersionArePrinted) {
  EXPECT_FALSE(Parse({"completion", "bash"}));
  EXPECT_EQ(exit_code_, kExitOk);
  EXPECT_THAT(out_, HasSubstr("complete -F _trainer trainer\n"));
  EXPECT_THAT(out_, HasSubstr("--checkpoint-activations"));
  EXPECT_FALSE(Parse({"completion", "zsh"}));
  EXPECT_THAT(out_, ::testing::StartsWith("#compdef trainer\n"));
  EXPECT_FALSE(Parse({"completion", "fish"}));
  EXPECT_THAT(out_, HasSubstr("complete -c trainer -n "));
  EXPECT_FALSE(Parse({"completion", "csh"}));
  EXPECT_EQ(exit_code_, kExitUsage);
  EXPECT_FALSE(Parse({"--version"}));
  EXPECT_EQ(exit_code_, kExitOk);
  EXPECT_THAT(out_, ::testing::StartsWith("trainer "));
}

TEST_F(FlagsTest, AdaptersHaveABaseInPlaceOfAPreset) {
  for (const char* command : {"run", "estimate"}) {
    const auto line = Parse({command, "--base", "out", "--lora-rank", "8", "--lora-alpha", "32",
                             "--lora-targets", "all"});
    ASSERT_TRUE(line) << err_;
    EXPECT_EQ(line->options.adapters.base, "out");
    EXPECT_EQ(line->options.adapters.rank, 8U);
    EXPECT_EQ(line->options.adapters.alpha, 32);
    EXPECT_EQ(line->options.adapters.targets, "all");
  }
  EXPECT_EQ(Parse({"run"})->options.adapters.rank, 0U);
  EXPECT_EQ(Parse({"sample", "out", "Once", "--base", "elsewhere"})->options.adapters.base,
            "elsewhere");
  for (const char* rank : {"0", "-1", "65537", "many"})
    EXPECT_FALSE(Parse({"run", "--base", "out", "--lora-rank", rank})) << rank;
  EXPECT_FALSE(Parse({"run", "--base", "out", "--lora-rank", "8", "--preset", "tiny"}));
  EXPECT_EQ(exit_code_, kExitUsage);
}

TEST_F(FlagsTest, ALaunchWithoutTheTwoDashesIsToldTheWholeCommand) {
  EXPECT_FALSE(Parse({"launch", "-n", "2", "run", "--steps", "10"}));
  EXPECT_EQ(exit_code_, kExitUsage);
  EXPECT_NE(err_.find("fix:   trainer launch -n 2 -- run --steps 10\n"), std::string::npos) << err_;
  EXPECT_FALSE(Parse({"launch", "-n", "2"}));
  EXPECT_NE(err_.find("fix:   trainer launch -n 2 -- run\n"), std::string::npos) << err_;
  EXPECT_TRUE(Parse({"launch", "-n", "2", "--", "run", "--steps", "10"})) << err_;
}

TEST_F(FlagsTest, RunTakesItsFlags) {
  const auto line = Parse({"run", "--preset", "tiny", "--steps", "7", "--rcache", "64MiB",
                           "--no-prefetch", "--dtype", "bf16", "--standalone"});
  ASSERT_TRUE(line) << err_;
  EXPECT_EQ(line->command, Command::kRun);
  EXPECT_EQ(line->options.model.preset, "tiny");
  EXPECT_EQ(line->options.training.steps, 7U);
  EXPECT_EQ(line->options.memory.rcache, "64MiB");
  EXPECT_FALSE(line->options.memory.prefetch);
  EXPECT_EQ(line->options.model.dtype, "bf16");
  EXPECT_TRUE(line->options.server.standalone);
}

TEST_F(FlagsTest, AnRcacheThatWasGivenIsALimitOfThePlan) {
  for (const char* command : {"run", "estimate"}) {
    EXPECT_TRUE(Parse({command})->options.memory.plan.empty());
    EXPECT_FALSE(Parse({command, "--plan", "zero3"})->options.memory.rcache_given);
    const auto line = Parse({command, "--plan", "zero2", "--rcache", "64MiB"});
    ASSERT_TRUE(line) << err_;
    EXPECT_EQ(line->options.memory.plan, "zero2");
    EXPECT_TRUE(line->options.memory.rcache_given);
    EXPECT_FALSE(Parse({command, "--plan", "zero1"}));
    EXPECT_NE(err_.find("zero3"), std::string::npos) << "the names are listed: " << err_;
  }
}

TEST_F(FlagsTest, RunAndEstimateTakeTheOptimizer) {
  for (const char* command : {"run", "estimate"}) {
    const auto line = Parse({command, "--optimizer", "sgd", "--momentum", "0.5", "--nesterov",
                             "--states", "split-8bit", "--dtype", "bf16"});
    ASSERT_TRUE(line) << err_;
    EXPECT_EQ(line->options.optimizer.rule, "sgd");
    EXPECT_EQ(line->options.optimizer.momentum, 0.5F);
    EXPECT_TRUE(line->options.optimizer.nesterov);
    EXPECT_EQ(line->options.optimizer.states, "split-8bit");
  }
  EXPECT_FALSE(Parse({"run", "--optimizer", "adamx"}));
  EXPECT_NE(err_.find("adagrad"), std::string::npos) << "the names are listed: " << err_;
  EXPECT_FALSE(Parse({"run", "--states", "int4"}));
}

TEST_F(FlagsTest, RunAndEstimateTakeBytesForStatesOnGpus) {
  for (const char* command : {"run", "estimate"}) {
    EXPECT_EQ(Parse({command})->options.memory.gpu_states, "off");
    EXPECT_EQ(Parse({command, "--gpu-states", "auto"})->options.memory.gpu_states, "auto");
    EXPECT_EQ(Parse({command, "--gpu-states", "4GiB"})->options.memory.gpu_states, "4GiB")
        << "what is no size is found where the plan is made";
  }
}

TEST_F(FlagsTest, WithoutFlagsTheDefaultsHold) {
  const auto line = Parse({"run"});
  ASSERT_TRUE(line) << err_;
  EXPECT_TRUE(line->options.memory.prefetch);
  EXPECT_EQ(line->options.model.preset, RunOptions().model.preset);
  EXPECT_EQ(line->options.training.steps, RunOptions().training.steps);
  EXPECT_EQ(line->options.job.name, "");
}

TEST_F(FlagsTest, LaunchPassesOnWhatFollowsTheDashes) {
  for (const char* flag : {"-n", "--ranks"}) {
    const auto line = Parse({"launch", flag, "2", "--", "run", "--socket-dir", "/run/x", "--steps",
                             "3", "--standalone"});
    ASSERT_TRUE(line) << err_;
    EXPECT_EQ(line->command, Command::kLaunch);
    EXPECT_EQ(line->launch_ranks, 2U);
    EXPECT_THAT(line->launch_arguments,
                ElementsAre("run", "--socket-dir", "/run/x", "--steps", "3", "--standalone"));
  }
}

TEST_F(FlagsTest, ResumeIsAWordOrADirectory) {
  EXPECT_EQ(Parse({"run"})->options.job.resume, "");
  EXPECT_EQ(Parse({"run"})->options.server.timeout, "120s");
  EXPECT_EQ(Parse({"run", "--resume", "auto", "--server-timeout", "0s"})->options.job.resume,
            "auto");
  EXPECT_EQ(
      Parse({"run", "--resume", "auto", "--rejoin-timeout", "5s"})->options.job.rejoin_timeout,
      "5s");
  EXPECT_EQ(Parse({"run", "--resume=never"})->options.job.resume, "never");
  EXPECT_EQ(Parse({"run", "--resume", "latest"})->options.job.resume, "latest");
  EXPECT_EQ(Parse({"run", "--resume", "/"})->options.job.resume, "/");
  EXPECT_FALSE(Parse({"run", "--resume", "always"}));
  EXPECT_EQ(exit_code_, kExitUsage);
}

TEST_F(FlagsTest, LaunchTakesANumberOfRestarts) {
  EXPECT_EQ(Parse({"launch", "-n", "2", "--", "run"})->launch_restarts, 3U);
  EXPECT_EQ(Parse({"launch", "-n", "2", "--max-restarts", "0", "--", "run"})->launch_restarts, 0U);
}

TEST_F(FlagsTest, LaunchNeedsRanksAndACommand) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"launch", "-n", "2"},
                                                {"launch", "--", "run"},
                                                {"launch", "-n", "0", "--", "run"},
                                                {"launch", "-n", "x", "--", "run"}}) {
    EXPECT_FALSE(Parse(words));
    EXPECT_EQ(exit_code_, kExitUsage);
    EXPECT_THAT(err_, HasSubstr("error[TP1001]"));
  }
}

TEST_F(FlagsTest, EstimateAndSampleAndVersion) {
  const auto estimate = Parse({"estimate", "--preset", "gpt2-10b", "--ranks", "4", "--json"});
  ASSERT_TRUE(estimate) << err_;
  EXPECT_EQ(estimate->command, Command::kEstimate);
  EXPECT_EQ(estimate->options.ranks, 4U);
  EXPECT_TRUE(estimate->options.output.json);
  const auto sample =
      Parse({"sample", "OUT", "Permission is", "--tokens", "9", "--temperature", "0"});
  ASSERT_TRUE(sample) << err_;
  EXPECT_EQ(sample->command, Command::kSample);
  EXPECT_EQ(sample->options.sample.weights_dir, "OUT");
  EXPECT_EQ(sample->options.sample.prompt, "Permission is");
  EXPECT_EQ(sample->options.sample.tokens, 9U);
  EXPECT_EQ(sample->options.sample.temperature, 0.0F);
  const auto exported = Parse({"export", "OUT", "HF", "--dtype", "bf16"});
  ASSERT_TRUE(exported) << err_;
  EXPECT_EQ(exported->command, Command::kExport);
  EXPECT_EQ(exported->options.exported.from, "OUT");
  EXPECT_EQ(exported->options.exported.to, "HF");
  EXPECT_EQ(exported->options.exported.dtype, "bf16");
  const auto tokenize = Parse({"tokenize", "--tokenizer", "T", "a.txt", "a.bin"});
  ASSERT_TRUE(tokenize) << err_;
  EXPECT_EQ(tokenize->command, Command::kTokenize);
  EXPECT_EQ(tokenize->options.tokenize.tokenizer, "T");
  EXPECT_EQ(tokenize->options.tokenize.text, "a.txt");
  EXPECT_EQ(tokenize->options.tokenize.to, "a.bin");
  ASSERT_TRUE(Parse({"version"}));
}

TEST_F(FlagsTest, HelpGoesToStdoutAndEndsWell) {
  EXPECT_FALSE(Parse({"--help"}));
  EXPECT_EQ(exit_code_, kExitOk);
  EXPECT_THAT(out_, HasSubstr("trainer launch -n 2 -- run"));
  EXPECT_FALSE(Parse({"run", "--help"}));
  EXPECT_EQ(exit_code_, kExitOk);
  EXPECT_THAT(out_, HasSubstr("--rcache"));
}

class FlagsFile : public FlagsTest {
 protected:
  std::optional<CommandLine> ParseWith(const std::string& file,
                                       std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"run", "--config", folder_.Write("run.toml", file)});
    return Parse(more);
  }
  TempFolder folder_;
};

TEST_F(FlagsFile, IsReadAndTheCommandLineWins) {
  const auto line = ParseWith(
      "steps = 7\nlr = 0.5\n[memory]\nrcache = \"64MiB\"\n"
      "no-prefetch = true\nnesterov = false\n",
      {"--lr", "0.25"});
  ASSERT_TRUE(line) << err_;
  EXPECT_EQ(line->options.training.steps, 7U);
  EXPECT_EQ(line->options.training.learning_rate, 0.25F);
  EXPECT_EQ(line->options.memory.rcache, "64MiB");
  EXPECT_FALSE(line->options.memory.prefetch);
  EXPECT_FALSE(line->options.optimizer.nesterov);
  const auto launched =
      Parse({"launch", "-n", "2", "--", "run", "--config", folder_.path() + "/run.toml"});
  ASSERT_TRUE(launched) << err_;
  EXPECT_EQ(launched->options.training.steps, 7U);
}

TEST_F(FlagsFile, IsWrittenByPrintConfigAndReadBack) {
  EXPECT_FALSE(
      Parse({"run", "--print-config", "--steps", "9", "--job", "a \"b\"", "--no-prefetch"}));
  EXPECT_EQ(exit_code_, kExitOk);
  EXPECT_THAT(out_, HasSubstr("\nsteps = 9\n"));
  EXPECT_THAT(out_, HasSubstr("\n# tokenizer =\n"));
  const auto line = ParseWith(out_);
  ASSERT_TRUE(line) << err_ << out_;
  EXPECT_EQ(line->options.training.steps, 9U);
  EXPECT_EQ(line->options.job.name, "a \"b\"");
  EXPECT_FALSE(line->options.memory.prefetch);
  EXPECT_EQ(line->options.training.learning_rate, RunOptions().training.learning_rate);
}

// A default that another flag takes the place of is not in the file.
TEST_F(FlagsFile, IsReadBackWhereFlagsExcludeOthers) {
  for (const char* const flag : {"--from", "--base"}) {
    EXPECT_FALSE(Parse({"run", "--print-config", flag, "out"}));
    EXPECT_THAT(out_, HasSubstr("\n# preset =\n"));
    const auto line = ParseWith(out_);
    ASSERT_TRUE(line) << err_ << out_;
    EXPECT_EQ(line->options.model.from + line->options.adapters.base, "out");
  }
}

// With --plan, an --rcache that is written down would be a limit.
TEST_F(FlagsFile, HasNoRcacheThatNobodyGaveBesideAPlan) {
  EXPECT_FALSE(Parse({"run", "--print-config", "--plan", "zero2"}));
  EXPECT_THAT(out_, HasSubstr("\n# rcache =\n"));
  const auto line = ParseWith(out_);
  ASSERT_TRUE(line) << err_ << out_;
  EXPECT_FALSE(line->options.memory.rcache_given);

  EXPECT_FALSE(Parse({"run", "--print-config", "--plan", "zero2", "--rcache", "64MiB"}));
  EXPECT_TRUE(ParseWith(out_)->options.memory.rcache_given);
}

TEST_F(FlagsFile, ThatIsWrongIsRefusedByKeyAndPlace) {
  EXPECT_FALSE(ParseWith("stepps = 7\n"));
  EXPECT_EQ(exit_code_, kExitUsage);
  EXPECT_THAT(err_, HasSubstr("did you mean \"--steps\"?"));
  EXPECT_FALSE(ParseWith("steps = -7\n"));
  EXPECT_THAT(err_, HasSubstr("--steps"));
  EXPECT_FALSE(ParseWith("[a]\nsteps = 7\n[b]\nsteps = 8\n"));
  EXPECT_THAT(err_, HasSubstr("steps is given twice"));
  EXPECT_THAT(err_, HasSubstr("run.toml:4"));
  EXPECT_FALSE(ParseWith("config = \"x\"\n"));
  EXPECT_THAT(err_, HasSubstr("cannot be in such a file itself"));
  EXPECT_FALSE(ParseWith("steps = \n"));
  EXPECT_THAT(err_, HasSubstr("not valid TOML"));
  EXPECT_FALSE(Parse({"run", "--config", folder_.path() + "/none.toml"}));
  EXPECT_THAT(err_, HasSubstr("none.toml"));
}

TEST_F(FlagsTest, MistakesAreUsageErrors) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{},
                                                {"run", "--nonsense"},
                                                {"run", "--steps", "many"},
                                                {"run", "--dtype", "fp8"},
                                                {"run", "--accumulate", "0"},
                                                {"sample"}}) {
    EXPECT_FALSE(Parse(words));
    EXPECT_EQ(exit_code_, kExitUsage);
    EXPECT_THAT(err_, HasSubstr("error[TP1001]"));
  }
}

TEST_F(FlagsTest, AnUnknownCommandSuggestsTheNearest) {
  EXPECT_FALSE(Parse({"lanch"}));
  EXPECT_EQ(exit_code_, kExitUsage);
  EXPECT_THAT(err_, HasSubstr("unknown command \"lanch\"; did you mean \"launch\"?"));
  EXPECT_FALSE(Parse({"zzz"}));
  EXPECT_THAT(err_, ::testing::Not(HasSubstr("did you mean")));
}

TEST_F(FlagsTest, TheDeviceIsTheHostUnlessAskedForOtherwise) {
  EXPECT_EQ(Parse({"run"})->options.device.name, "cpu");
  EXPECT_EQ(Parse({"estimate", "--device", "cuda:1"})->options.device.name, "cuda:1");
  const auto doctor = Parse({"doctor"});
  ASSERT_TRUE(doctor) << err_;
  EXPECT_EQ(doctor->command, Command::kDoctor);
  EXPECT_EQ(doctor->options.device.name, "auto");
  EXPECT_EQ(Parse({"doctor", "--device", "cpu"})->options.device.name, "cpu");
}

TEST_F(FlagsTest, OffloadingIsOfWhatCheckpointingKeeps) {
  EXPECT_FALSE(Parse({"run", "--offload-activations"}));
  EXPECT_EQ(exit_code_, kExitUsage);
  const auto line =
      Parse({"run", "--checkpoint-activations", "--offload-activations", "--trace", "step.json"});
  ASSERT_TRUE(line) << err_;
  EXPECT_TRUE(line->options.model.offload_activations);
  EXPECT_EQ(line->options.output.trace_file, "step.json");
}

}  // namespace flags_test
}  // namespace tidepool::trainer

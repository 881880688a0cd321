// Every flag that is a number, on every command line that has it, with values that somebody will
// type one day.
#include "trainer/cli/number_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <regex>
#include <set>

#include "base/error_catalog.h"
#include "base/text/error_text.h"
#include "trainer/cli/flags.h"

namespace tidepool::trainer {
namespace number_flags_test {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  bool goes_on = false;
  int exit_code = -1;
  std::string out, err;
  CommandLine line;
};

Outcome Parse(std::vector<std::string> words) {
  words.insert(words.begin(), "trainer");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  Outcome outcome;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  outcome.goes_on = ParseCommandLine(static_cast<int>(argv.size()), argv.data(), &outcome.line,
                                     &outcome.exit_code);
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  // Lines that were folded, whole again.
  const std::string fold = "\n" + std::string(kFoldIndent, ' ');
  for (size_t at = 0; (at = outcome.err.find(fold, at)) != std::string::npos;)
    outcome.err.replace(at, fold.size(), " ");
  return outcome;
}

// What stands before and behind a flag on the command lines that may have it.
struct Place {
  std::string command;
  std::vector<std::string> before, behind;
  std::vector<std::string> values;
};
const std::vector<Place>& Places() {
  static const std::vector<std::string> all{"nan",  "-nan", "inf",   "-inf",
                                            "-1",   "0",    "1e400", "99999999999999999999999",
                                            "much", "1x",   "0x"};
  static const std::vector<std::string> some{"nan", "-1", "0", "1e400"};
  static const std::vector<Place> places{
      {"run", {"run"}, {}, all},
      {"run", {"run", "--dry-run"}, {}, some},
      {"run", {"launch", "-n", "2", "--", "run"}, {}, some},
      {"run", {"launch", "-n", "2", "--", "run", "--dry-run"}, {}, {"-1"}},
      {"estimate", {"estimate"}, {}, some},
      {"sample", {"sample"}, {"OUT", "text"}, all},
      {"launch", {"launch"}, {"--", "run"}, all}};
  return places;
}

// The flags of a command whose values are numbers, as its help says.
std::set<std::string> NumbersOf(const std::string& command) {
  const std::string help = Parse({command, "--help"}).out;
  std::set<std::string> names;
  const std::regex line("(--[a-z0-9-]+) (UINT|INT|FLOAT)");
  for (std::sregex_iterator found(help.begin(), help.end(), line), end; found != end; ++found)
    names.insert((*found)[1]);
  return names;
}

// Gives the flag, and beside it what it needs to have an effect.
Outcome Give(const Place& place, const std::string& flag, const std::string& value) {
  std::vector<std::string> words = place.before;
  words.push_back(flag + "=" + value);
  if (flag == "--momentum" || flag == "--dampening") words.push_back("--optimizer=sgd");
  if (flag == "--lr-decay") words.push_back("--optimizer=adagrad");
  if (flag == "--lora-alpha") words.push_back("--lora-rank=8");
  if (flag == "--checkpoint-every" || flag == "--keep") words.push_back("--checkpoint-dir=dir");
  if (flag == "--keep") words.push_back("--checkpoint-every=100");
  if (place.command == "launch" && flag != "--ranks") words.insert(words.end(), {"-n", "2"});
  words.insert(words.end(), place.behind.begin(), place.behind.end());
  return Parse(words);
}

TEST(NumberFlags, EachOneOfTheHelpHasARangeAndAReason) {
  size_t found = 0;
  for (const char* command : {"run", "estimate", "sample", "launch"}) {
    for (const std::string& name : NumbersOf(command)) {
      const NumberFlag* flag = FindNumberFlag(command, name);
      ASSERT_NE(flag, nullptr) << command << " " << name << " has no row in number_flags.cpp";
      EXPECT_GT(std::string(flag->why).size(), 5U);
      ++found;
    }
  }
  EXPECT_GE(found, NumberFlags().size());
}

TEST(NumberFlags, AValueOutOfRangeEndsWithFlagValueRangeAndReasonOnEveryCommandLine) {
  for (const Place& place : Places()) {
    for (const std::string& name : NumbersOf(place.command)) {
      const NumberFlag* flag = FindNumberFlag(place.command, name);
      ASSERT_NE(flag, nullptr);
      for (const std::string& value : place.values) {
        const bool zero_means_something = value == "0" && flag->least == 0 && !flag->above;
        const Outcome outcome = Give(place, name, value);
        SCOPED_TRACE(place.before.front() + " " + name + "=" + value + "\n" + outcome.err);
        EXPECT_EQ(outcome.goes_on, zero_means_something);
        EXPECT_THAT(outcome.err, Not(HasSubstr("report this")));
        if (zero_means_something) continue;
        EXPECT_EQ(outcome.exit_code, kExitUsage);
        EXPECT_THAT(outcome.err,
                    HasSubstr("error[TP1001]: " + name + ": " + value + " is not in range "));
        EXPECT_THAT(outcome.err, HasSubstr(flag->why));
      }
    }
  }
}

TEST(NumberFlags, WhatRoundsOutOfRangeIsOutOfRange) {
  for (const char* flag : {"--beta1", "--beta2", "--momentum"}) {
    EXPECT_FALSE(Parse({"run", flag, "1"}).goes_on);
    EXPECT_FALSE(Parse({"run", flag, "0.99999999999"}).goes_on) << "1 as a 32-bit number";
    const char* rule = flag == std::string("--momentum") ? "sgd" : "adamw";
    EXPECT_TRUE(Parse({"run", flag, "0.999999", "--optimizer", rule}).goes_on);
  }
  EXPECT_FALSE(Parse({"run", "--lora-alpha", "1e-60"}).goes_on);
  EXPECT_FALSE(Parse({"run", "--batch", "1.5"}).goes_on);
}

TEST(NumberFlags, TheBoundsThemselvesAreReadAsWritten) {
  EXPECT_EQ(Parse({"run", "--seed", "18446744073709551615"}).line.options.model.seed, ~uint64_t{0});
  EXPECT_FALSE(Parse({"run", "--seed", "18446744073709551616"}).goes_on);
  EXPECT_EQ(Parse({"run", "--batch", "1048576"}).line.options.data.batch, 1048576U);
  EXPECT_FALSE(Parse({"run", "--batch", "1048577"}).goes_on);
  EXPECT_EQ(Parse({"run", "--lr", "1e3"}).line.options.training.learning_rate, 1000);
  EXPECT_EQ(Parse({"run", "--lr", "+.5"}).line.options.training.learning_rate, 0.5F);
}

TEST(NumberFlags, ZerosInFrontAreNoOtherBase) {
  EXPECT_EQ(Parse({"run", "--batch", "010"}).line.options.data.batch, 10U);
  EXPECT_EQ(Parse({"run", "--batch", "+8"}).line.options.data.batch, 8U);
  EXPECT_EQ(Parse({"run", "--warmup", "00"}).line.options.training.warmup_steps, 0U);
  EXPECT_FALSE(Parse({"run", "--batch", "0x10"}).goes_on);
}

TEST(NumberFlags, LaunchReadsTheFlagsOfItsRanks) {
  const Outcome outcome = Parse({"launch", "-n", "2", "--", "run", "--steps", "7"});
  ASSERT_TRUE(outcome.goes_on) << outcome.err;
  EXPECT_EQ(outcome.line.options.training.steps, 7U);
  EXPECT_EQ(Parse({"launch", "-n", "2", "--", "run", "--stepps", "7"}).exit_code, kExitUsage);
  EXPECT_EQ(Parse({"launch", "-n", "2", "--", "run", "--help"}).exit_code, kExitOk);
  EXPECT_TRUE(Parse({"launch", "-n", "2", "--", "version"}).goes_on);
}

}  // namespace number_flags_test
}  // namespace tidepool::trainer

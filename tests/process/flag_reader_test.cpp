#include "tests/process/rig/flag_reader.h"

#include <gmock/gmock.h>

#include <optional>
#include <string>
#include <vector>

namespace tidepool::testing {
namespace flag_reader_test {

struct Values {
  bool large = false;
  uint32_t jobs = 2;
  std::string victim = "all";
  std::vector<std::string> points;
};

std::optional<int> Read(std::vector<std::string> words, Values* values) {
  FlagReader flags("tries flags");
  flags.Switch("--large", &values->large);
  flags.Add("--jobs", &values->jobs, "rounds at once", 1u, 64u);
  flags.Text("--victim", &values->victim, "", {"all", "server"});
  flags.Texts("--points", &values->points);

  std::string program = "program";
  std::vector<char*> arguments{program.data()};
  for (std::string& word : words) arguments.push_back(word.data());
  return flags.Read(static_cast<int>(arguments.size()), arguments.data());
}

TEST(FlagReader, EachFlagSetsItsVariable) {
  Values values;
  EXPECT_EQ(Read({"--points", "a", "b", "--large", "--jobs", "64", "--victim", "server"}, &values),
            std::nullopt);
  EXPECT_THAT(values.points, ::testing::ElementsAre("a", "b"));
  EXPECT_TRUE(values.large);
  EXPECT_EQ(values.jobs, 64u);
  EXPECT_EQ(values.victim, "server");
}

TEST(FlagReader, WhatIsNotNamedStaysAsItWas) {
  Values values;
  EXPECT_EQ(Read({"--large"}, &values), std::nullopt);
  EXPECT_EQ(values.jobs, 2u);
  EXPECT_EQ(values.victim, "all");
}

TEST(FlagReader, AWrongWordEndsTheProgramWithTwo) {
  const std::vector<std::vector<std::string>> wrong{{"--lage"},
                                                    {"large"},
                                                    {"--jobs"},
                                                    {"--jobs", "0"},
                                                    {"--jobs", "65"},
                                                    {"--jobs", "6x"},
                                                    {"--jobs", "--large"},
                                                    {"--victim", "nobody"}};
  for (const auto& words : wrong) {
    Values values;
    EXPECT_EQ(Read(words, &values), 2) << ::testing::PrintToString(words);
  }
}

TEST(FlagReader, HelpEndsTheProgramWithZero) {
  Values values;
  EXPECT_EQ(Read({"--help", "--lage"}, &values), 0);
}

}  // namespace flag_reader_test
}  // namespace tidepool::testing

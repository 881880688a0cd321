// What CLI11 says about a command line becomes an error with the flag to change.
#include "base/text/flag_error.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace flag_error_test {

void ExpectPlain(const std::string& text, const std::string& what, const std::string& fix) {
  const FlagError error = PlainFlagError(text);
  EXPECT_EQ(error.what, what);
  EXPECT_EQ(error.fix, fix);
}

TEST(FlagErrors, NameTheFlagToChange) {
  ExpectPlain("--steps: At Most 1 required but received 2", "--steps is given 2 times",
              "leave all but one --steps out");
  ExpectPlain("ps: --output: At Most 1 required but received 3", "ps: --output is given 3 times",
              "leave all but one --output out");
  ExpectPlain("--plan excludes --pipeline", "--plan and --pipeline exclude each other",
              "leave --plan or --pipeline out");
  ExpectPlain("--tail requires --follow", "--tail needs --follow",
              "give --follow too, or leave --tail out");
  ExpectPlain("--steps: 1 required UINT missing", "--steps stands without its value",
              "give --steps a value, or leave it out");
  ExpectPlain("Could not convert: --steps = many",
              "--steps many is no number of the kind that it takes",
              "correct the value of --steps");
  ExpectPlain("--lr: -1 is not in range 0 to 1000: a reason: with a colon",
              "--lr: -1 is not in range 0 to 1000: a reason: with a colon",
              "give --lr a value in this range");
}

TEST(FlagErrors, OtherTextsStayAsTheyAre) {
  for (const char* text : {"--ranks: Value 0 not in range 1 to 64", "shell is required",
                           "The following argument was not expected: --foo", ""})
    ExpectPlain(text, text, "");
}

}  // namespace flag_error_test
}  // namespace tidepool

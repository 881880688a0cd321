#include "base/text/suggest.h"

#include <gtest/gtest.h>

#include <array>

namespace tidepool {
namespace suggest_test {

constexpr std::array<std::string_view, 4> kKnown{"run", "estimate", "launch", "residency"};

TEST(DidYouMean, TheNearestWordWithinTwoEdits) {
  EXPECT_EQ(DidYouMean("rum", kKnown), "; did you mean \"run\"?");
  EXPECT_EQ(DidYouMean("lanuch", kKnown), "; did you mean \"launch\"?");
  EXPECT_EQ(DidYouMean("estimates", kKnown), "; did you mean \"estimate\"?");
  EXPECT_EQ(DidYouMean("run", kKnown), "; did you mean \"run\"?");
}

TEST(DidYouMean, OfThoseThatBeginAlikeTheNearest) {
  constexpr std::array<std::string_view, 3> kFlags{"--states", "--standalone", "--steps"};
  EXPECT_EQ(DidYouMean("--standalon", kFlags), "; did you mean \"--standalone\"?");
}

TEST(DidYouMean, ACommonBeginningOfThreeLettersIsNearerThanTwoEdits) {
  EXPECT_EQ(DidYouMean("res", kKnown), "; did you mean \"residency\"?");
  EXPECT_EQ(DidYouMean("estimation", kKnown), "; did you mean \"estimate\"?");
}

TEST(DidYouMean, TheDashesOfAFlagAreNoBeginning) {
  constexpr std::array<std::string_view, 3> kFlags{"--seed", "--schedule", "--steps"};
  EXPECT_EQ(DidYouMean("--stepps", kFlags), "; did you mean \"--steps\"?");
  EXPECT_EQ(DidYouMean("--sched", kFlags), "; did you mean \"--schedule\"?");
  EXPECT_EQ(DidYouMean("--size", kFlags), "");
}

TEST(DidYouMean, NothingNearIsNoSuggestion) {
  EXPECT_EQ(DidYouMean("xyz", kKnown), "");
  EXPECT_EQ(DidYouMean("", kKnown), "");
  EXPECT_EQ(DidYouMean("top", {}), "");
  // Replacing every letter is no likeness.
  constexpr std::array<std::string_view, 1> kShort{"ps"};
  EXPECT_EQ(DidYouMean("xx", kShort), "");
}

}  // namespace suggest_test
}  // namespace tidepool

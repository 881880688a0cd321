#include "trainer/data/repeat_finder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"

namespace tidepool::trainer {
namespace repeat_finder_test {

std::string Words(SplitMix64* random, int count, uint64_t kinds) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "w" + std::to_string(random->Below(kinds)) + " ";
  return text;
}

// The rule, file by file against each earlier one. Words are single, so that runs of five are
// easily made.
class EveryPair {
 public:
  bool IsRepeat(const std::string& text) {
    std::vector<std::string> words;
    for (size_t at = 0; at < text.size(); at = text.find(' ', at) + 1)
      words.push_back(text.substr(at, text.find(' ', at) - at));
    std::set<std::string> shingles;
    for (size_t i = 0; i + 5 <= words.size(); ++i) {
      std::string shingle;
      for (size_t k = i; k < i + 5; ++k) shingle += words[k] + " ";
      shingles.insert(shingle);
    }
    for (const auto& earlier : kept_) {
      size_t both = 0;
      for (const std::string& shingle : shingles) both += earlier.contains(shingle);
      if (2 * both > shingles.size()) return true;
    }
    kept_.push_back(shingles);
    return false;
  }

 private:
  std::vector<std::set<std::string>> kept_;
};

// Files made of parts that others have too, in many proportions, so that just half and just more
// than half occur.
TEST(RepeatFinder, FindsWhatComparingEveryPairFinds) {
  SplitMix64 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> parts;
    for (int i = 0; i < 12; ++i)
      parts.push_back(Words(&random, static_cast<int>(6 + random.Below(30)), 100'000));
    RepeatFinder finder(1);
    EveryPair every_pair;
    int repeats = 0;
    for (int file = 0; file < 60; ++file) {
      std::string text;
      for (uint64_t n = 1 + random.Below(4); n > 0; --n) text += parts[random.Below(parts.size())];
      if (random.Below(2) == 0) text += Words(&random, static_cast<int>(random.Below(60)), 100'000);
      const bool repeat = every_pair.IsRepeat(text);
      repeats += repeat;
      ASSERT_EQ(finder.IsRepeat(text), repeat) << round << ' ' << file;
    }
    EXPECT_GT(repeats, 0);
    EXPECT_LT(repeats, 60);
  }
}

TEST(RepeatFinder, DoesNotCompareAllFilesThatShareAHeader) {
  SplitMix64 random(4);
  const std::string header = Words(&random, 150, 1'000'000);
  RepeatFinder finder(1);
  constexpr uint64_t kFiles = 2000;
  for (uint64_t file = 0; file < kFiles; ++file)
    EXPECT_FALSE(finder.IsRepeat(header + Words(&random, 200, 1'000'000)));
  EXPECT_LE(finder.compared(), kFiles);
  EXPECT_TRUE(finder.IsRepeat(header + Words(&random, 100, 1'000'000)));
}

}  // namespace repeat_finder_test
}  // namespace tidepool::trainer

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "base/random.h"
#include "tests/trainer/data/data_files.h"
#include "trainer/data/corpus.h"
#include "trainer/data/text_files.h"

namespace tidepool::trainer {
namespace text_corpus_test {

// Random words, so that two seeds share no run of five.
std::string Prose(uint64_t seed, int words) {
  SplitMix64 random(seed);
  std::string text;
  for (int i = 0; i < words; ++i)
    text += "w" + std::to_string(random.Below(5000)) + (i % 9 == 8 ? ".\n" : " ");
  return text;
}

std::vector<std::string> Names(const std::vector<TextFile>& files) {
  std::vector<std::string> names;
  for (const TextFile& file : files) names.push_back(std::filesystem::path(file.path).filename());
  return names;
}

TEST(TextFiles, AreReadRecursivelyInOrder) {
  const TempFolder folder;
  folder.Write("b.txt", Prose(1, 50));
  folder.Write("a/z.txt", Prose(2, 50));
  folder.Write("c", Prose(3, 50));
  folder.Write(".git/x", Prose(4, 50));
  folder.Write("empty", "");
  folder.Write("binary", std::string("a\0b", 3));
  ASSERT_EQ(symlink("b.txt", (folder.path() + "/link").c_str()), 0);
  const auto read = ReadTextFiles(folder.path());
  ASSERT_TRUE(read.ok()) << read.status().Format();
  EXPECT_EQ(Names(read.value().kept), (std::vector<std::string>{"z.txt", "b.txt", "c"}));
  EXPECT_EQ(read.value().skipped, 2U);
  EXPECT_TRUE(read.value().repeats.empty());
}

TEST(TextFiles, DropFilesThatMostlyRepeatAnEarlierOne) {
  const TempFolder folder;
  const std::string original = Prose(1, 400);
  folder.Write("1-original", original);
  std::string shouted = original;
  std::transform(shouted.begin(), shouted.end(), shouted.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  folder.Write("2-shouted", shouted);                  // only case differs
  folder.Write("3-mostly", original + Prose(2, 300));  // 4 of 7 parts repeated
  folder.Write("4-partly", Prose(3, 600) + original);  // 4 of 10
  folder.Write("5-short", "yes");
  folder.Write("6-short", "Yes!");
  const auto read = ReadTextFiles(folder.path());
  ASSERT_TRUE(read.ok()) << read.status().Format();
  EXPECT_EQ(Names(read.value().kept),
            (std::vector<std::string>{"1-original", "4-partly", "5-short"}));
  EXPECT_EQ(read.value().repeats.size(), 3U);
}

TEST(TextFiles, NameWhatCannotBeUsed) {
  const TempFolder folder;
  EXPECT_EQ(ReadTextFiles(folder.path()).status().id(), ErrorId::kDataBad);
  EXPECT_EQ(ReadTextFiles(folder.path() + "/absent").status().id(), ErrorId::kFileUnreadable);
  EXPECT_EQ(ReadTextFile(folder.path() + "/absent").status().id(), ErrorId::kFileUnreadable);
}

TEST(Corpus, HoldsOutOneDistinctFileOfAFolder) {
  const TempFolder folder;
  folder.Write("a", Prose(1, 800));
  folder.Write("b", Prose(2, 200));
  folder.Write("c", Prose(3, 900));
  const auto corpus = OpenCorpus(folder.path(), {});
  ASSERT_TRUE(corpus.ok()) << corpus.status().Format();
  EXPECT_EQ(corpus.value().validation.size(), Prose(2, 200).size());  // the one nearest to a tenth
  EXPECT_EQ(corpus.value().train.size(), Prose(1, 800).size() + Prose(3, 900).size() + 2);
  EXPECT_NE(corpus.value().description.find("held out: '" + folder.path() + "/b'"),
            std::string::npos)
      << corpus.value().description;
}

TEST(Corpus, SplitsALoneText) {
  const TempFolder folder;
  const std::string text = Prose(1, 100);
  const auto path = folder.Write("only.txt", text);
  for (const std::string& name : {path, folder.path()}) {
    const auto corpus = OpenCorpus(name, {.vocab = 256, .validation_share = 0.25});
    ASSERT_TRUE(corpus.ok()) << corpus.status().Format();
    EXPECT_EQ(corpus.value().train.size() + corpus.value().validation.size(), text.size());
    EXPECT_NEAR(static_cast<double>(corpus.value().validation.size()),
                0.25 * static_cast<double>(text.size()), 1);
  }
}

TEST(Corpus, NamesWhatCannotBeUsed) {
  const TempFolder folder;
  EXPECT_EQ(OpenCorpus(folder.path() + "/absent", {}).status().id(), ErrorId::kFileUnreadable);
  EXPECT_EQ(OpenCorpus(folder.Write("empty.txt", ""), {}).status().id(), ErrorId::kDataBad);
  EXPECT_EQ(OpenCorpus(folder.Write("text.txt", "hello"), {.vocab = 100}).status().id(),
            ErrorId::kUsageError);
  const auto binary = OpenCorpus(folder.Write("tokens", std::string("a\0b", 3)), {});
  EXPECT_EQ(binary.status().id(), ErrorId::kDataBad);
  EXPECT_NE(binary.status().Format().find("byte 1 is NUL"), std::string::npos)
      << binary.status().Format();
  ASSERT_EQ(mkfifo((folder.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(OpenCorpus(folder.path() + "/pipe", {}).status().id(), ErrorId::kDataBad);
}

}  // namespace text_corpus_test
}  // namespace tidepool::trainer

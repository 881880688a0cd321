#include "trainer/data/token_file.h"

#include <unistd.h>

#include <numeric>

#include <gtest/gtest.h>

#include "tests/trainer/data/data_files.h"
#include "trainer/data/corpus.h"

namespace tidepool::trainer {
namespace token_file_test {

std::vector<int64_t> ReadAll(const TokenSource& source) {
  std::vector<int64_t> out(source.size());
  const Status status = source.Read(0, out);
  EXPECT_TRUE(status.ok()) << status.Format();
  return out;
}

TEST(TokenFile, ReadsLlmc16) {
  const TempFolder folder;
  const auto path =
      folder.Write("gpt2.bin", LlmcHeader(20240520, 1, 4) + IdBytes<uint16_t>({1, 50256, 3, 256}));
  const auto opened = OpenTokenFile(path, 50257);
  ASSERT_TRUE(opened.ok()) << opened.status().Format();
  ASSERT_TRUE(opened.value().has_value());
  EXPECT_EQ(ReadAll(TokenSource(opened.value()->file)), (std::vector<int64_t>{1, 50256, 3, 256}));
  EXPECT_NE(opened.value()->form.find("uint16"), std::string::npos);
}

TEST(TokenFile, ReadsLlmc32WhateverItsName) {
  const TempFolder folder;
  const auto path =
      folder.Write("llama3", LlmcHeader(20240801, 7, 3) + IdBytes<uint32_t>({1, 128000, 70000}));
  const auto opened = OpenTokenFile(path, 128256);
  ASSERT_TRUE(opened.ok() && opened.value().has_value());
  EXPECT_EQ(ReadAll(TokenSource(opened.value()->file)), (std::vector<int64_t>{1, 128000, 70000}));
}

TEST(TokenFile, ReadsHeaderlessBin) {
  const TempFolder folder;
  const auto opened = OpenTokenFile(folder.Write("train.bin", IdBytes<uint16_t>({5, 6, 7})), 100);
  ASSERT_TRUE(opened.ok() && opened.value().has_value());
  EXPECT_EQ(ReadAll(TokenSource(opened.value()->file)), (std::vector<int64_t>{5, 6, 7}));
  EXPECT_NE(opened.value()->form.find("guessed"), std::string::npos);
}

TEST(TokenFile, LeavesOtherFilesToBeText) {
  const TempFolder folder;
  const auto opened = OpenTokenFile(folder.Write("letter.txt", "Dear reader"), 256);
  ASSERT_TRUE(opened.ok());
  EXPECT_FALSE(opened.value().has_value());
}

TEST(TokenFile, NamesWhatIsWrong) {
  const TempFolder folder;
  const auto error = [&](const std::string& name, const std::string& bytes) {
    return OpenTokenFile(folder.Write(name, bytes), 256).status();
  };
  EXPECT_EQ(error("version.bin", LlmcHeader(20240520, 2, 0)).id(), ErrorId::kDataBad);
  const Status cut = error("cut.bin", LlmcHeader(20240520, 1, 5) + IdBytes<uint16_t>({1, 2, 3, 4}));
  EXPECT_EQ(cut.id(), ErrorId::kDataBad);
  EXPECT_NE(cut.what().find("promises 5 tokens"), std::string::npos) << cut.what();
  EXPECT_NE(error("odd.bin", "abc").what().find("odd size"), std::string::npos);
  EXPECT_NE(error("empty.bin", "").what().find("no token"), std::string::npos);
  EXPECT_EQ(OpenTokenFile(folder.path() + "/absent.bin", 256).status().id(),
            ErrorId::kFileUnreadable);
}

TEST(TokenSource, NamesFileAndPlaceOfAnIdBeyondTheVocabulary) {
  const TempFolder folder;
  const auto path = folder.Write("train.bin", IdBytes<uint16_t>({5, 6, 300, 7}));
  const TokenSource source(OpenTokenFile(path, 256).value()->file);
  std::vector<int64_t> out(2);
  EXPECT_TRUE(source.Read(0, out).ok());
  const Status status = source.Read(1, out);
  EXPECT_EQ(status.id(), ErrorId::kDataBad);
  EXPECT_NE(status.what().find("token 2 of '" + path + "' has id 300"), std::string::npos)
      << status.what();
  EXPECT_NE(status.Format().find("byte 4"), std::string::npos) << status.Format();
}

TEST(TokenSource, NoticesAFileThatBecameShorter) {
  const TempFolder folder;
  const auto path = folder.Write("train.bin", IdBytes<uint16_t>(std::vector<uint32_t>(100, 1)));
  const TokenSource source(OpenTokenFile(path, 256).value()->file);
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  std::vector<int64_t> out(60);
  EXPECT_EQ(source.Read(0, out).id(), ErrorId::kFileUnreadable);
  EXPECT_TRUE(source.Read(0, std::span(out).first(50)).ok());
}

TEST(TokenSource, PartsCountFromTheirOwnStart) {
  const TokenSource all(std::make_shared<const std::string>("abcdef\xFF"));
  EXPECT_EQ(all.size(), 7U);
  const TokenSource inner = all.Part(2, 5).Part(1, 4);
  EXPECT_EQ(ReadAll(inner), (std::vector<int64_t>{'d', 'e', 'f', 255}));
  EXPECT_EQ(TokenSource().size(), 0U);
}

TEST(Corpus, HoldsOutTheSiblingOfATokenFile) {
  const TempFolder folder;
  folder.Write("val.bin", IdBytes<uint16_t>({9, 9}));
  const auto path = folder.Write("train.bin", IdBytes<uint16_t>({1, 2, 3}));
  for (const std::string& name : {path, folder.path()}) {
    const auto corpus = OpenCorpus(name, {.vocab = 10});
    ASSERT_TRUE(corpus.ok()) << corpus.status().Format();
    EXPECT_EQ(ReadAll(corpus.value().train), (std::vector<int64_t>{1, 2, 3}));
    EXPECT_EQ(ReadAll(corpus.value().validation), (std::vector<int64_t>{9, 9}));
    EXPECT_NE(corpus.value().description.find("val.bin"), std::string::npos);
  }
}

TEST(Corpus, HoldsOutTheEndOfALoneTokenFile) {
  const TempFolder folder;
  std::vector<uint32_t> ids(100);
  std::iota(ids.begin(), ids.end(), 0);
  const auto corpus =
      OpenCorpus(folder.Write("tokens.bin", LlmcHeader(20240520, 1, 100) + IdBytes<uint16_t>(ids)),
                 {.vocab = 100});
  ASSERT_TRUE(corpus.ok()) << corpus.status().Format();
  EXPECT_EQ(corpus.value().train.size(), 90U);
  EXPECT_EQ(ReadAll(corpus.value().validation).front(), 90);
}

}  // namespace token_file_test
}  // namespace tidepool::trainer

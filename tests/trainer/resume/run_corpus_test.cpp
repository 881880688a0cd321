// The data and the places for output of a run are looked at before anything is contacted.
#include "trainer/inputs/run_corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/trainer/data/data_files.h"
#include "trainer/inputs/run_files.h"

namespace tidepool::trainer {
namespace run_corpus_test {

using ::testing::HasSubstr;

class RunCorpusTest : public ::testing::Test {
 protected:
  RunCorpusTest() {
    options_.data.batch = 4;
    options_.data.context = 16;
    shape_.vocab = 256;
    shape_.context = 64;
  }
  Result<RunCorpus> Open(const std::string& data, uint32_t world = 1) {
    options_.data.path = data;
    return OpenRunCorpus(options_, shape_, world, 0);
  }
  void ExpectRefused(const std::string& data, ErrorId id, const std::string& said) {
    const Status refused = Open(data).status();
    EXPECT_EQ(refused.id(), id) << refused.Format();
    EXPECT_THAT(refused.Format(), HasSubstr(said));
    EXPECT_THAT(refused.Format(), ::testing::Not(HasSubstr("report this")));
  }

  TempFolder folder_;
  RunOptions options_;
  GptShape shape_;
};

TEST_F(RunCorpusTest, ATextIsOpenedAndNamed) {
  Result<RunCorpus> data = Open(folder_.Write("a.txt", std::string(1000, 'a')));
  ASSERT_TRUE(data.ok()) << data.status().Format();
  EXPECT_EQ(data->shape.tokens, 16U);
  EXPECT_EQ(data->facts.train.tokens, 900U);
  EXPECT_THAT(data->note, HasSubstr("batch 4\ncontext 16\nseed 1\ntrain 900 (hash "));
}

TEST_F(RunCorpusTest, WithoutContextThatOfTheModelCounts) {
  options_.data.context = 0;
  EXPECT_THAT(std::move(Open(folder_.Write("a.txt", std::string(1000, 'a')))).value().note,
              HasSubstr("context 64\n"));
}

TEST_F(RunCorpusTest, IdsThatTheModelDoesNotKnowAreFoundBeforeTheRun) {
  std::vector<uint32_t> ids(5000, 1);
  ids[4999] = 256;  // in the held-out part
  ExpectRefused(folder_.Write("t.bin", IdBytes<uint16_t>(ids)), ErrorId::kDataBad, "token 4999 of");
}

TEST_F(RunCorpusTest, WhatIsTooShortForOneSequenceIsFoundBeforeTheRun) {
  ExpectRefused(folder_.Write("a.txt", std::string(16, 'a')), ErrorId::kDataBad,
                "one sequence and its last target take 17");
  ExpectRefused(folder_.Write("a.txt", std::string(100, 'a')), ErrorId::kDataBad,
                "what is held out is too short");
  options_.training.eval_every = 0;
  EXPECT_TRUE(Open(folder_.Write("a.txt", std::string(100, 'a'))).ok());
}

TEST_F(RunCorpusTest, ABatchThatTheRanksCannotShareIsRefused) {
  const Status refused = Open(folder_.Write("a.txt", std::string(1000, 'a')), 3).status();
  EXPECT_EQ(refused.id(), ErrorId::kUsageError);
  EXPECT_THAT(refused.Format(), HasSubstr("--batch 4"));
}

TEST_F(RunCorpusTest, WhatTheRunWritesBesideItsDataIsNoData) {
  folder_.Write("a.txt", std::string(1000, 'a'));
  folder_.Write("b.txt", std::string(900, 'b'));
  options_.output.out_dir = folder_.path() + "/out";
  const std::string before = std::move(Open(folder_.path())).value().note;
  folder_.Write("out/metrics.jsonl", std::string(300, 'm'));
  EXPECT_EQ(std::move(Open(folder_.path())).value().note, before);
  options_.output.out_dir.clear();
  EXPECT_NE(std::move(Open(folder_.path())).value().note, before);
}

// --- places for output ---

TEST_F(RunCorpusTest, PlacesThatCanBeMadeAreFineAndNothingIsMade) {
  options_.output.out_dir = folder_.path() + "/a/b/c";
  options_.output.save_dir = folder_.path() + "/s/";
  options_.output.trace_file = folder_.path() + "/t.json";
  EXPECT_TRUE(CheckOutputs(options_.output).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_TRUE(PrepareOutputs(options_.output).ok());
  EXPECT_TRUE(CheckOutputs(options_.output).ok()) << "and again where they are there";
  EXPECT_TRUE(std::filesystem::is_directory(options_.output.out_dir));
}

TEST_F(RunCorpusTest, PlacesBehindAFileAreRefusedByTheNameOfTheFlag) {
  const std::string file = folder_.Write("file", "x");
  for (const auto& [flag, place] : {std::pair{"--out", &options_.output.out_dir},
                                    std::pair{"--save", &options_.output.save_dir}}) {
    for (const std::string& path : {file, file + "/deeper/still"}) {
      *place = path;
      EXPECT_EQ(CheckOutputs(options_.output).id(), ErrorId::kFileWriteFailed);
      EXPECT_THAT(CheckOutputs(options_.output).where(), HasSubstr(std::string(flag) + " " + path));
      EXPECT_FALSE(PrepareOutputs(options_.output).ok());
    }
    place->clear();
  }
  for (const std::string& path :
       {file + "/t.json", folder_.path(), folder_.path() + "/nowhere/t.json"}) {
    options_.output.trace_file = path;
    EXPECT_EQ(CheckOutputs(options_.output).id(), ErrorId::kFileWriteFailed) << path;
    EXPECT_FALSE(PrepareOutputs(options_.output).ok());
  }
}

}  // namespace run_corpus_test
}  // namespace tidepool::trainer

#include "trainer/data/corpus_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "tests/trainer/data/data_files.h"
#include "trainer/data/token_file.h"

namespace tidepool::trainer {
namespace corpus_facts_test {

using ::testing::HasSubstr;

CorpusFacts FactsOf(const std::string& path, const CorpusOptions& options = {}) {
  Result<Corpus> corpus = OpenCorpus(path, options);
  EXPECT_TRUE(corpus.ok()) << corpus.status().Format();
  Result<CorpusFacts> facts = LookThrough(*corpus);
  EXPECT_TRUE(facts.ok()) << facts.status().Format();
  return *facts;
}

TEST(CorpusFacts, TheSameTextGivesTheSame) {
  const TempFolder one, other;
  const std::string text(5001, 'a');
  const CorpusFacts facts = FactsOf(one.Write("a.txt", text));
  EXPECT_EQ(facts.train.tokens, 4501U);
  EXPECT_EQ(facts.held_out.tokens, 500U);
  EXPECT_EQ(FactsOf(other.Write("b.txt", text)).train, facts.train);
}

TEST(CorpusFacts, OneByteAnywhereGivesAnother) {
  const TempFolder folder;
  const CorpusFacts before = FactsOf(folder.Write("a.txt", std::string(3000, 'a')));
  for (const size_t at : {0, 1, 7, 1500, 2699}) {
    SCOPED_TRACE(at);
    std::string text(3000, 'a');
    text[at] = 'b';
    const CorpusFacts after = FactsOf(folder.Write("a.txt", text));
    EXPECT_NE(after.train.hash, before.train.hash);
    EXPECT_EQ(after.held_out, before.held_out);
  }
  std::string text(3000, 'a');
  text[2999] = 'b';
  EXPECT_NE(FactsOf(folder.Write("a.txt", text)).held_out.hash, before.held_out.hash);
}

TEST(CorpusFacts, AFileMoreOrAnotherOrderGivesAnother) {
  const TempFolder folder;
  folder.Write("a.txt", std::string(900, 'a'));
  folder.Write("b.txt", std::string(1000, 'b'));
  folder.Write("c.txt", std::string(100, 'c'));
  const CorpusFacts before = FactsOf(folder.path());
  folder.Write("d.txt", std::string(300, 'd'));
  EXPECT_NE(FactsOf(folder.path()).train, before.train);
  std::filesystem::remove(folder.path() + "/d.txt");
  EXPECT_EQ(FactsOf(folder.path()).train, before.train);
  std::filesystem::rename(folder.path() + "/a.txt", folder.path() + "/e.txt");
  EXPECT_NE(FactsOf(folder.path()).train.hash, before.train.hash)
      << "the same bytes behind the others";
}

std::vector<uint32_t> Rising(uint32_t count) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0U);
  return ids;
}

TEST(CorpusFacts, ATokenFileThatGrowsGivesAnother) {
  const TempFolder folder;
  const CorpusFacts before =
      FactsOf(folder.Write("t.bin", IdBytes<uint16_t>(Rising(1000))), {.vocab = 2000});
  const CorpusFacts after =
      FactsOf(folder.Write("t.bin", IdBytes<uint16_t>(Rising(1010))), {.vocab = 2000});
  EXPECT_EQ(before.train.tokens, 900U);
  EXPECT_NE(after.train, before.train);
  EXPECT_NE(after.held_out, before.held_out);
}

TEST(CorpusFacts, AnIdBeyondTheVocabularyIsFoundWhereverItIs) {
  const TempFolder folder;
  for (const size_t at : {size_t{0}, size_t{70'000}, size_t{140'000}, size_t{199'999}}) {
    SCOPED_TRACE(at);
    std::vector<uint32_t> ids(200'000, 1);
    ids[at] = 500;
    Result<Corpus> corpus =
        OpenCorpus(folder.Write("t.bin", IdBytes<uint16_t>(ids)), {.vocab = 500});
    ASSERT_TRUE(corpus.ok());
    const Status bad = LookThrough(*corpus).status();
    EXPECT_EQ(bad.id(), ErrorId::kDataBad);
    EXPECT_THAT(bad.what(), HasSubstr("token " + std::to_string(at) + " of"));
  }
}

TEST(CorpusFacts, OfALargeFileEvenlySpreadPiecesAreRead) {
  const TempFolder folder;
  const LookOptions few{.piece_tokens = 100, .pieces_max = 3};
  const auto facts = [&](size_t changed) {
    std::vector<uint32_t> ids(1050, 1);
    if (changed < ids.size()) ids[changed] = 2;
    auto opened = OpenTokenFile(folder.Write("t.bin", IdBytes<uint16_t>(ids)), 500);
    return std::move(LookThrough(TokenSource((*opened.value()).file), few)).value();
  };
  const TokenFacts before = facts(5000);
  for (const size_t seen : {0, 99, 500, 599, 1000, 1049}) EXPECT_NE(facts(seen), before) << seen;
  for (const size_t unseen : {100, 499, 600, 999}) EXPECT_EQ(facts(unseen), before) << unseen;
}

// --- what a run has written itself ---

class OwnOutputFiles : public ::testing::Test {
 protected:
  OwnOutputFiles() {
    folder_.Write("a.txt", std::string(900, 'a'));
    folder_.Write("b.txt", std::string(1000, 'b'));
    folder_.Write("sub/c.txt", std::string(300, 'c'));
  }
  std::string In(const std::string& name) const { return folder_.path() + "/" + name; }
  // As the folder was before `outputs` were written.
  void ExpectAsBefore(const OutputPlaces& outputs, const CorpusFacts& before) const {
    const CorpusFacts after = FactsOf(folder_.path(), {.outputs = outputs});
    EXPECT_EQ(after.train, before.train);
    EXPECT_EQ(after.held_out, before.held_out);
  }

  TempFolder folder_;
};

TEST_F(OwnOutputFiles, InFoldersInsideTheDataAreNoData) {
  const CorpusFacts before = FactsOf(folder_.path());
  const OutputPlaces outputs{
      .reports = In("runs/out"), .weights = In("runs/weights"), .trace = In("trace.json")};
  ExpectAsBefore(outputs, before);
  folder_.Write("runs/out/metrics.jsonl", std::string(100, 'm'));
  folder_.Write("runs/out/notes/anything", std::string(100, 'n'));
  folder_.Write("runs/weights/config.json", std::string(100, 'o'));
  folder_.Write("trace.json", std::string(100, 'p'));
  ExpectAsBefore(outputs, before);
  EXPECT_NE(FactsOf(folder_.path()).train, before.train)
      << "for a run that writes elsewhere they are text as any other";
  EXPECT_THAT(std::move(OpenCorpus(folder_.path(), {.outputs = outputs})).value().description,
              HasSubstr("4 more left out as outputs"));
}

TEST_F(OwnOutputFiles, InTheDataFolderItselfAreKnownByTheirNames) {
  const CorpusFacts before = FactsOf(folder_.path());
  const OutputPlaces outputs{
      .reports = folder_.path() + "/.", .weights = folder_.path(), .trace = ""};
  ExpectAsBefore(outputs, before);
  for (const char* name :
       {"metrics.jsonl", "metrics.noted", "tidepool.tfevents.1", "unfinished.job", "base.names.new",
        "config.json", "model.safetensors.tmp-1f"}) {
    folder_.Write(name, std::string(100, 'm'));
  }
  ExpectAsBefore(outputs, before);
  folder_.Write("sub/metrics.jsonl", std::string(100, 'm'));
  EXPECT_NE(FactsOf(folder_.path(), {.outputs = outputs}).train, before.train)
      << "not where this run writes";
}

TEST_F(OwnOutputFiles, AroundTheDataHideNothing) {
  const CorpusFacts all = FactsOf(folder_.path());
  ExpectAsBefore({.reports = "/", .weights = std::filesystem::temp_directory_path(), .trace = ""},
                 all);
}

TEST_F(OwnOutputFiles, AreFoundThroughLinks) {
  const CorpusFacts before = FactsOf(folder_.path());
  const TempFolder elsewhere;
  std::filesystem::create_directory_symlink(folder_.path(), elsewhere.path() + "/link");
  folder_.Write("out/metrics.jsonl", std::string(100, 'm'));
  ExpectAsBefore({.reports = elsewhere.path() + "/link/out", .weights = "", .trace = ""}, before);
  const CorpusFacts by_link = FactsOf(
      elsewhere.path() + "/link", {.outputs = {.reports = In("out"), .weights = "", .trace = ""}});
  EXPECT_EQ(by_link.train, before.train);
}

}  // namespace corpus_facts_test
}  // namespace tidepool::trainer

#include "trainer/run/resuming/run_note.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace tidepool::trainer {
namespace run_note_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

RunOptions Options() {
  RunOptions options;
  options.data.batch = 8;
  options.model.seed = 1;
  options.data.path = "/data/words";
  options.training.learning_rate = 3e-4F;
  return options;
}

constexpr CorpusFacts kFacts{{1000, 0xabc}, {100, 0xdef}};

std::string NoteWith(const std::function<void(RunOptions*)>& change,
                     const CorpusFacts& facts = kFacts, uint64_t context = 128) {
  RunOptions options = Options();
  change(&options);
  return MakeRunNote(options, {.context = context, .facts = facts, .from = {}});
}

std::string Note() {
  return NoteWith([](RunOptions*) {});
}

const NotedSlot kSlot{.job = "j", .rank = 3, .version = 7};

Status Refused(const std::string& own) {
  return CheckRunNote(Note(), own, kSlot);
}

TEST(RunNote, OtherWeightsToBeginWithAreRefusedAndNoneAreFine) {
  const auto from = [](const char* fingerprint) {
    return MakeRunNote(Options(), {.context = 128, .facts = kFacts, .from = fingerprint});
  };
  const Status refused = CheckRunNote(from("00aa"), from("00ab"), kSlot);
  EXPECT_EQ(refused.id(), ErrorId::kJobMismatch);
  EXPECT_THAT(refused.what(), HasSubstr("--from: fingerprint of the weights 00aa, now 00ab"));
  EXPECT_THAT(refused.fix(), HasSubstr("give --from with the weights that the job began with"));
  EXPECT_TRUE(CheckRunNote(from("00aa"), from("00aa"), kSlot).ok());
  EXPECT_TRUE(CheckRunNote(from("00aa"), Note(), kSlot).ok());
}

TEST(RunNote, TheSameRunSaysTheSame) {
  EXPECT_EQ(Note(), Note());
  EXPECT_TRUE(Refused(Note()).ok());
  EXPECT_THAT(DescribeChanges(Note(), Note()), IsEmpty());
}

TEST(RunNote, WhatChangesTheOrderIsRefusedWithBeforeAndNowAndTheWayBack) {
  struct Case {
    std::string own, said, remedy;
  };
  const std::vector<Case> cases{
      {NoteWith([](RunOptions* o) { o->data.batch = 4; }), "--batch 8, now 4", "--batch 8 again"},
      {NoteWith([](RunOptions* o) { o->model.seed = 2; }), "--seed 1, now 2", "--seed 1 again"},
      {NoteWith([](RunOptions*) {}, kFacts, 64), "--context 128, now 64", "--context 128 again"},
      {NoteWith([](RunOptions*) {}, {{1001, 0xabc}, {100, 0xdef}}),
       "to train on 1000 (hash abc), now 1001 (hash abc)", "bring back the data"},
      {NoteWith([](RunOptions*) {}, {{1000, 0xabd}, {100, 0xdef}}),
       "to train on 1000 (hash abc), now 1000 (hash abd)", "bring back the data"},
      {NoteWith([](RunOptions*) {}, {{1000, 0xabc}, {100, 0xdee}}),
       "held-out tokens 100 (hash def), now 100 (hash dee)", "bring back"},
  };
  for (const Case& one : cases) {
    const Status refused = Refused(one.own);
    EXPECT_EQ(refused.id(), ErrorId::kJobMismatch);
    EXPECT_THAT(refused.what(), HasSubstr(one.said));
    EXPECT_THAT(refused.fix(), HasSubstr(one.remedy));
    EXPECT_THAT(refused.fix(), HasSubstr("--job"));
    EXPECT_THAT(refused.where(),
                HasSubstr("rank 3 of job j at step 7, begun with --data /data/words"));
  }
}

TEST(RunNote, AllThatChangedIsToldAtOnce) {
  const Status refused =
      Refused(NoteWith([](RunOptions* o) { o->data.batch = 4, o->model.seed = 9; }));
  EXPECT_THAT(refused.what(), HasSubstr("--batch 8, now 4; --seed 1, now 9"));
  EXPECT_THAT(refused.fix(), HasSubstr("--batch 8 --seed 1 again"));
}

TEST(RunNote, AdaptersOfAnotherWeightAreRefused) {
  const auto note = [](float alpha) {
    return NoteWith([alpha](RunOptions* o) { o->adapters.rank = 8, o->adapters.alpha = alpha; });
  };
  EXPECT_THAT(CheckRunNote(note(16), note(8), kSlot).what(), HasSubstr("--lora-alpha 16, now 8"));
}

TEST(RunNote, WhatLeavesTheOrderAloneIsToldAndGoesOn) {
  const std::string own = NoteWith([](RunOptions* o) {
    o->training.learning_rate = 1e-3F, o->training.steps = 400, o->training.schedule = "linear";
  });
  EXPECT_TRUE(Refused(own).ok());
  EXPECT_THAT(DescribeChanges(Note(), own),
              ElementsAre("--steps 200 -> 400: goes on with the new one",
                          "--lr 0.0003 -> 0.001: goes on with the new one",
                          "--schedule cosine -> linear: goes on with the new one"));
}

TEST(RunNote, ADataFolderMayMove) {
  EXPECT_TRUE(Refused(NoteWith([](RunOptions* o) { o->data.path = "/elsewhere"; })).ok());
}

TEST(RunNote, NothingKeptIsNothingToCompare) {
  EXPECT_TRUE(CheckRunNote("", Note(), kSlot).ok());
  EXPECT_TRUE(CheckRunNote("\n\nbatch\nwords that mean nothing", Note(), kSlot).ok());
}

TEST(RunNote, KeysThatOneSideAloneKnowsAreNoDifference) {
  EXPECT_TRUE(CheckRunNote(Note() + "of_another_release 1\n", Note(), kSlot).ok());
  EXPECT_TRUE(CheckRunNote("batch 8\n", Note(), kSlot).ok());
}

// --- ranks of one run ---

TEST(RunNote, ARankThatIsUnlikeTheFirstOneIsNamedBeforeAnythingIsSealed) {
  const std::string own = NoteWith([](RunOptions*) {}, {{1001, 0xabc}, {100, 0xdef}});
  const Status refused = CheckRunNote(Note(), own, {.job = "j", .rank = 3});
  EXPECT_EQ(refused.id(), ErrorId::kJobMismatch);
  EXPECT_THAT(refused.what(),
              HasSubstr("rank 3 was started otherwise than the rank that came to job \"j\" first"));
  EXPECT_THAT(refused.what(), HasSubstr("to train on 1000 (hash abc) there, 1001 (hash abc) here"));
  EXPECT_THAT(refused.fix(), HasSubstr("the same data"));
  EXPECT_THAT(refused.fix(), HasSubstr("memctl job release j"));
}

TEST(RunNote, RanksAgreeOnWhatALaterRunMayChange) {
  const std::string own = NoteWith([](RunOptions* o) { o->training.learning_rate = 1e-3F; });
  EXPECT_TRUE(CheckRunNote(Note(), own, {.job = "j", .rank = 3}).ok());
  const Status refused = CheckRankNote(Note(), own, {.job = "j", .rank = 3});
  EXPECT_EQ(refused.id(), ErrorId::kJobMismatch);
  EXPECT_THAT(refused.what(),
              HasSubstr("rank 3 was started otherwise than rank 0: --lr 0.0003 there, 0.001 here"));
  EXPECT_TRUE(CheckRankNote(Note(), Note(), {.job = "j", .rank = 3}).ok());
}

TEST(RunNote, TheOtherRanksHearWhoDiffers) {
  EXPECT_TRUE(CheckOtherRanks(std::vector<double>{0, 0, 0}, "j").ok());
  const Status refused = CheckOtherRanks(std::vector<double>{0, 1, 1}, "j");
  EXPECT_EQ(refused.id(), ErrorId::kJobMismatch);
  EXPECT_THAT(refused.where(), HasSubstr("rank 1, 2 of job j"));
}

TEST(RunNote, TheLongestFitsWhatTheServerKeeps) {
  RunOptions options = Options();
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  options.data.batch = options.model.seed = options.training.steps = options.training.warmup_steps =
      kMost;
  options.training.learning_rate = options.training.min_learning_rate = options.adapters.alpha =
      -1.17549435e-38F;
  options.adapters.rank = 8;
  options.data.path = std::string(4096, 'd') + "\nend";
  const std::string note = MakeRunNote(
      options,
      {.context = kMost, .facts = {{kMost, kMost}, {kMost, kMost}}, .from = "0123456789abcdef"});
  EXPECT_LE(note.size(), kRunNoteBytesMax);
  EXPECT_THAT(note, HasSubstr("data ...ddd"));
  EXPECT_THAT(note, HasSubstr("d?end\n"));
}

// --- the cursor, also where no note is kept ---

Result<uint64_t> Cursor(uint64_t kept, Version version, uint64_t batch,
                        uint32_t micro_batches = 1) {
  RunOptions options = Options();
  options.data.batch = batch;
  options.training.micro_batches = micro_batches;
  return CursorInSequences(kept, version, options);
}

TEST(RunCursor, CountsSequences) {
  EXPECT_EQ(Cursor(0, 0, 8).value(), 0U);
  EXPECT_EQ(Cursor(40, 5, 8).value(), 40U);
  EXPECT_EQ(Cursor(120, 5, 8, 3).value(), 120U);
}

TEST(RunCursor, OfAnEarlierReleaseCountedMicroBatches) {
  EXPECT_EQ(Cursor(5, 5, 8).value(), 40U);
  EXPECT_EQ(Cursor(15, 5, 8, 3).value(), 120U);
}

TEST(RunCursor, OfStepsWithAnotherBatchIsRefused) {
  const Status refused = Cursor(40, 5, 4).status();
  EXPECT_EQ(refused.id(), ErrorId::kJobMismatch);
  EXPECT_THAT(refused.what(), HasSubstr("trained with --batch 8, now --batch 4"));
  EXPECT_THAT(Cursor(41, 5, 4).status().what(), HasSubstr("another --batch"));
  EXPECT_FALSE(Cursor(7, 0, 4).ok());
  EXPECT_FALSE(Cursor(7, ~Version{0}, 4, 7).ok());
}

}  // namespace run_note_test
}  // namespace tidepool::trainer

// What a run is known by is kept with its job: said by the first rank, told to all, also by the
// next server.
#include <cstring>

#include <gtest/gtest.h>
#include "memserver/residency/kept/job_records.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace run_note_test {

class RunNote : public ::testing::Test {
 protected:
  RunNote() : world_(WithLease()), spec_(MakeSpec({.world = 2})) {}

  // The note that rank `rank`, which says `note`, is answered with.
  std::string Told(Rank rank, const std::string& note) {
    world_.SayOfRun(note);
    ranks_.push_back(world_.Join(spec_, rank));
    const auto attached = world_.TakeReply<Attached>();
    return attached ? attached->note : "refused";
  }
  // Both ranks die, and the job stays.
  void LoseAll() {
    for (const auto& rank : ranks_) world_.Lose(*rank);
    ranks_.clear();
    world_.Settle();
    world_.TakeAllReplies();
  }
  void Train() {
    SmallTrainer trainer(&world_, spec_);
    ASSERT_TRUE(trainer.JoinAll());
    trainer.PutWeights(1);
    trainer.Step({.seed = 1});
    for (const auto& rank : trainer.ranks()) world_.Lose(*rank);
    world_.Settle();
    world_.TakeAllReplies();
  }
  JobRecord& Record() { return world_.tables().jobs.front()->states->record(); }

  ServeWorld world_;
  const shm::JobSpec spec_;
  std::vector<std::unique_ptr<FakeRank>> ranks_;
};

TEST_F(RunNote, TheFirstRanksIsToldToAll) {
  EXPECT_EQ(Told(0, "batch 8"), "batch 8");
  EXPECT_EQ(Told(1, "batch 4"), "batch 8");
}

TEST_F(RunNote, AJobWhoseFirstRankSaysNothingHasNone) {
  EXPECT_EQ(Told(0, ""), "");
  EXPECT_EQ(Told(1, "batch 4"), "");
}

TEST_F(RunNote, ItStaysOverTheDeathOfAllRanksAndOfTheServer) {
  world_.SayOfRun("batch 8");
  Train();
  EXPECT_EQ(Told(0, "batch 4"), "batch 8");
  LoseAll();
  world_.Restart();
  world_.Settle();
  EXPECT_EQ(Told(0, "batch 2"), "batch 8");
}

TEST_F(RunNote, GoesWithTheJob) {
  EXPECT_EQ(Told(0, "batch 8"), "batch 8");
  LoseAll();
  EXPECT_EQ(Told(0, "batch 4"), "batch 4") << "a job without weights is not kept";
}

TEST_F(RunNote, TheLongestIsKeptWhole) {
  const std::string longest(shm::kRunNoteMax, 'x');
  EXPECT_EQ(Told(0, longest), longest);
  EXPECT_EQ(NoteOf(Record()), longest);
}

TEST_F(RunNote, OneThatDoesNotFitItsCheckIsNoneAndTheJobIsKept) {
  world_.SayOfRun("batch 8");
  Train();
  Record().note.text[6] = '9';
  world_.Restart();
  ASSERT_FALSE(world_.tables().jobs.empty());
  world_.Settle();
  EXPECT_EQ(Told(0, "batch 8"), "");
}

TEST_F(RunNote, AnImpossibleLengthIsNone) {
  world_.SayOfRun("batch 8");
  Train();
  Record().note.bytes = shm::kRunNoteMax + 1;
  EXPECT_EQ(NoteOf(Record()), "");
}

TEST_F(RunNote, RecordsOfAServerThatKnewNoNotesHaveNone) {
  Train();
  std::memset(&Record().note, 0, sizeof Record().note);
  EXPECT_EQ(NoteOf(Record()), "");
  world_.Restart();
  EXPECT_FALSE(world_.tables().jobs.empty());
}

}  // namespace run_note_test
}  // namespace tidepool::memserver

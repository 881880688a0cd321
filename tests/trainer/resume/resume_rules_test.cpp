#include "trainer/run/resuming/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidepool::trainer {
namespace resume_rules_test {

using ::testing::HasSubstr;

RankPlace Place(const std::string& job_name, uint32_t restarts) {
  RankPlace place;
  place.job_name = job_name;
  place.restarts = restarts;
  return place;
}

RunOptions Options(const std::string& resume, const std::string& job) {
  RunOptions options;
  options.job.resume = resume;
  options.job.name = job;
  return options;
}

Result<bool> Wanted(const RunOptions& options, const RankPlace& place) {
  return ResumeWanted(options.job, options.server, place);
}

TEST(ResumeWanted, IsNeverUnlessSaidOrTorchrunStartedTheRanksAgain) {
  EXPECT_FALSE(Wanted(Options("", "j"), Place("", 0)).value());
  EXPECT_TRUE(Wanted(Options("", "j"), Place("", 1)).value());
  EXPECT_FALSE(Wanted(Options("never", "j"), Place("", 1)).value());
  EXPECT_TRUE(Wanted(Options("auto", "j"), Place("", 0)).value());
}

TEST(ResumeWanted, AutoNeedsANameThatTheNextProcessKnows) {
  const auto unnamed = Wanted(Options("auto", ""), Place("", 0));
  ASSERT_FALSE(unnamed.ok());
  EXPECT_EQ(unnamed.status().exit_code(), kExitUsage);
  EXPECT_THAT(unnamed.status().Format(), HasSubstr("--job NAME"));
  EXPECT_TRUE(Wanted(Options("auto", ""), Place("launch-1", 0)).value());
  RunOptions alone = Options("auto", "");
  alone.server.standalone = true;  // its states end with it anyway
  EXPECT_TRUE(Wanted(alone, Place("", 0)).value());
}

// Only ranks of the run itself, which the launcher starts again, find its job.
TEST(ResumeWanted, BehindACheckpointAHeldJobIsGoneOnWithByRestartsAlone) {
  for (const char* from : {"latest", "runs/a/step-00000300"}) {
    EXPECT_FALSE(Wanted(Options(from, "j"), Place("", 0)).value()) << from;
    EXPECT_TRUE(Wanted(Options(from, "j"), Place("", 1)).value()) << from;
  }
}

TEST(JobName, IsTheUsersThenTheLaunchersThenOfThisProcess) {
  EXPECT_EQ(JobNameOf(Options("", "mine"), Place("launch-1", 0)), "mine");
  EXPECT_EQ(JobNameOf(Options("", ""), Place("launch-1", 0)), "launch-1");
  EXPECT_EQ(JobNameOf(Options("", ""), Place("", 0)), "quickstart-" + std::to_string(getpid()));
}

TEST(StillHeld, NamesBothWaysOut) {
  const Status refusal = StillHeld("j", 7);
  EXPECT_EQ(refusal.exit_code(), kExitRefused);
  for (const char* part : {"\"j\" at step 7", "--resume auto", "another --job name"})
    EXPECT_THAT(refusal.Format(), HasSubstr(part));
}

TEST(WhatIsLeft, OfAStoppedRunIsTold) {
  RunOptions options;
  const auto says = [&options](const char* kept, const char* text) {
    return WhatIsLeft(options, "j", kept).find(text) != std::string::npos;
  };
  EXPECT_TRUE(
      says("kept until 13:05",
           "job j is kept until 13:05, and the same command with --job j --resume auto goes on"));
  EXPECT_TRUE(says("not kept, because --lease is 0s", "job j is not kept"));
  EXPECT_FALSE(says("not kept, because --lease is 0s", "goes on"));
  EXPECT_TRUE(says("", "gone with the job") && says("", "--save DIR") && says("", "--resume auto"));
  options.checkpoint = {.every = 10, .dir = "ck"};
  EXPECT_TRUE(says("", "--resume latest goes on behind the newest checkpoint in ck"));
  options.checkpoint = {};
  options.server.standalone = true;
  EXPECT_FALSE(says("", "--resume")) << "a private server keeps nothing";
  options.output.save_dir = "out";
  EXPECT_TRUE(says("", "and saved"));
  EXPECT_FALSE(says("", "gone"));
}

TEST(ExplainEnd, SaysHowTheJobGoesOn) {
  for (const ErrorId id : {ErrorId::kServerGone, ErrorId::kPeerLost, ErrorId::kCollectiveFailed,
                           ErrorId::kVersionGone, ErrorId::kRanksMissing}) {
    const Status told = ExplainEnd(Status(id, "it ended"), "j", false);
    EXPECT_EQ(told.id(), id);
    EXPECT_THAT(told.Format(), HasSubstr("the same command with --job j --resume auto"));
    EXPECT_THAT(told.Format(), HasSubstr("kept"));
  }
  EXPECT_THAT(
      ExplainEnd(Status(ErrorId::kPeerLost, "it ended"), "j", true, "kept until 13:05").fix(),
      HasSubstr("The job is kept until 13:05"));
  EXPECT_EQ(ExplainEnd(Status(ErrorId::kServerGone, "it ended"), "j", true).exit_code(),
            kExitJobKept);
}

TEST(ExplainEnd, MissingRanksAreWorthALook) {
  const Status told = ExplainEnd(Status(ErrorId::kRanksMissing, "rank 1 did not come"), "j", true);
  EXPECT_EQ(told.exit_code(), kExitJobKept);
  EXPECT_THAT(told.Format(), HasSubstr("why the missing ranks ended"));
  EXPECT_THAT(told.Format(), HasSubstr("--rejoin-timeout"));
}

// A rank that does not come, a server that does not come, and states that are gone: trying again
// would end likewise.
TEST(EndsAttemptOnly, IsWhatTheNextAttemptMayMend) {
  for (const ErrorId id : {ErrorId::kPeerLost, ErrorId::kCollectiveFailed, ErrorId::kVersionGone})
    EXPECT_TRUE(EndsAttemptOnly(Status(id, "it ended")));
  for (const ErrorId id : {ErrorId::kRanksMissing, ErrorId::kServerGone, ErrorId::kStatesLost,
                           ErrorId::kNonFinite, ErrorId::kRcacheTooSmall})
    EXPECT_FALSE(EndsAttemptOnly(Status(id, "it ended")));
  EXPECT_TRUE(EndsAttemptOnly(Status(ErrorId::kWaitTimeout, "rank 0 stands in a write"),
                              /*in_training=*/true));
  EXPECT_FALSE(EndsAttemptOnly(Status(ErrorId::kWaitTimeout, "no room in the queue")))
      << "a slot did not come";
}

TEST(ExplainEnd, LostStatesCannotGoOn) {
  const Status told = ExplainEnd(Status(ErrorId::kStatesLost, "lost"), "j", true);
  EXPECT_EQ(told.exit_code(), kExitCorrupt);
  EXPECT_THAT(told.Format(), HasSubstr("nothing to continue"));
  EXPECT_THAT(told.Format(), HasSubstr("with --or-new starts it anew at step 1"));
  const Status found_out = Status(ErrorId::kStatesLost, "lost").Fix("as its finder says");
  EXPECT_EQ(ExplainEnd(found_out, "j", true).fix(), "as its finder says");
}

TEST(AsLoss, IsWhatStatesThatCannotBeReadMeanForARun) {
  for (const ErrorId id : {ErrorId::kNvmeIoFailed, ErrorId::kNvmeStalled, ErrorId::kNvmeDataBad}) {
    const Status ended(id, "chunk 3 cannot be read");
    ASSERT_TRUE(LosesStates(ended));
    const Status told = AsLoss(ended, "j", true);
    EXPECT_EQ(told.exit_code(), kExitCorrupt);
    EXPECT_THAT(told.Format(),
                ::testing::AllOf(HasSubstr("chunk 3 cannot be read"), HasSubstr("--or-new")));
  }
  EXPECT_FALSE(LosesStates(Status(ErrorId::kPeerLost, "a rank died")));
}

TEST(ResumeWanted, OrNewSaysNothingWhereEveryRunIsNew) {
  RunOptions options = Options("never", "j");
  options.job.or_new = true;
  EXPECT_EQ(Wanted(options, Place("", 0)).status().id(), ErrorId::kUsageError);
  options.job.resume = "auto";
  EXPECT_TRUE(Wanted(options, Place("", 0)).value());
}

TEST(ExplainPrivateEnd, AServerThatEndedTookTheStatesWithIt) {
  const Status told =
      ExplainPrivateEnd(Status(ErrorId::kServerGone, "it ended").Where("there"), "last words");
  EXPECT_EQ(told.id(), ErrorId::kStatesLost);
  EXPECT_EQ(told.where(), "there");
  EXPECT_THAT(told.Format(), HasSubstr("last words"));
  EXPECT_THAT(told.Format(), HasSubstr("nothing to continue"));
  EXPECT_EQ(ExplainPrivateEnd(Status(ErrorId::kServerGone, "it ended"), "").why(), "it ended");
  EXPECT_EQ(ExplainPrivateEnd(Status(ErrorId::kPoolFull, "full"), "last words").id(),
            ErrorId::kPoolFull);
}

TEST(ExplainEnd, LeavesOtherErrorsAsTheyAre) {
  const Status told = ExplainEnd(Status(ErrorId::kNonFinite, "not finite"), "j", true);
  EXPECT_EQ(told.Format(), Status(ErrorId::kNonFinite, "not finite").Format());
}

}  // namespace resume_rules_test
}  // namespace tidepool::trainer

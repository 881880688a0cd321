#include "trainer/resume.h"

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
  options.resume = resume;
  options.job = job;
  return options;
}

TEST(ResumeWanted, IsNeverUnlessSaidOrTorchrunStartedTheRanksAgain) {
  EXPECT_FALSE(ResumeWanted(Options("", "j"), Place("", 0)).value());
  EXPECT_TRUE(ResumeWanted(Options("", "j"), Place("", 1)).value());
  EXPECT_FALSE(ResumeWanted(Options("never", "j"), Place("", 1)).value());
  EXPECT_TRUE(ResumeWanted(Options("auto", "j"), Place("", 0)).value());
}

TEST(ResumeWanted, AutoNeedsANameThatTheNextProcessKnows) {
  const auto unnamed = ResumeWanted(Options("auto", ""), Place("", 0));
  ASSERT_FALSE(unnamed.ok());
  EXPECT_EQ(unnamed.status().exit_code(), kExitUsage);
  EXPECT_THAT(unnamed.status().Format(), HasSubstr("--job NAME"));
  EXPECT_TRUE(ResumeWanted(Options("auto", ""), Place("launch-1", 0)).value());
  RunOptions alone = Options("auto", "");
  alone.standalone = true;  // its states end with it anyway
  EXPECT_TRUE(ResumeWanted(alone, Place("", 0)).value());
}

TEST(ResumeWanted, AnyOtherWordIsAnError) {
  EXPECT_EQ(ResumeWanted(Options("always", "j"), Place("", 0)).status().id(), ErrorId::kUsageError);
}

TEST(JobName, IsTheUsersThenTheLaunchersThenOfThisProcess) {
  EXPECT_EQ(JobNameOf(Options("", "mine"), Place("launch-1", 0)), "mine");
  EXPECT_EQ(JobNameOf(Options("", ""), Place("launch-1", 0)), "launch-1");
  EXPECT_EQ(JobNameOf(Options("", ""), Place("", 0)), "quickstart-" + std::to_string(getpid()));
}

TEST(StillHeld, NamesBothWaysOut) {
  const Status refusal = StillHeld("j", 7);
  EXPECT_EQ(refusal.exit_code(), kExitRefused);
  for (const char* part : {"\"j\" at step 7", "--resume auto", "another --job name"}) EXPECT_THAT(refusal.Format(), HasSubstr(part));
}

TEST(WhatIsLeft, OfAStoppedRunIsTold) {
  RunOptions options;
  const auto says = [&options](bool kept, const char* text) { return WhatIsLeft(options, "j", kept).find(text) != std::string::npos; };
  EXPECT_TRUE(says(true, "job j is kept"));
  EXPECT_TRUE(says(false, "gone with the job") && says(false, "--save DIR") && says(false, "--resume auto"));
  options.standalone = true;
  EXPECT_FALSE(says(false, "--resume")) << "a private server keeps nothing";
  options.save_dir = "out";
  EXPECT_TRUE(says(false, "and saved"));
  EXPECT_FALSE(says(false, "gone"));
}

TEST(ExplainEnd, SaysHowTheJobGoesOn) {
  for (const ErrorId id :
       {ErrorId::kServerGone, ErrorId::kPeerLost, ErrorId::kCollectiveFailed, ErrorId::kVersionGone, ErrorId::kRanksMissing}) {
    const Status told = ExplainEnd(Status(id, "it ended"), "j", false);
    EXPECT_EQ(told.id(), id);
    EXPECT_THAT(told.Format(), HasSubstr("the same command with --job j --resume auto"));
    EXPECT_THAT(told.Format(), HasSubstr("kept"));
  }
  EXPECT_EQ(ExplainEnd(Status(ErrorId::kServerGone, "it ended"), "j", true).exit_code(), kExitJobKept);
}

TEST(ExplainEnd, MissingRanksAreWorthALook) {
  const Status told = ExplainEnd(Status(ErrorId::kRanksMissing, "rank 1 did not come"), "j", true);
  EXPECT_EQ(told.exit_code(), kExitJobKept);
  EXPECT_THAT(told.Format(), HasSubstr("why the missing ranks ended"));
  EXPECT_THAT(told.Format(), HasSubstr("--rejoin-timeout"));
}

// A rank that does not come, a server that does not come, and states that are gone: trying again would end likewise.
TEST(EndsAttemptOnly, IsWhatTheNextAttemptMayMend) {
  for (const ErrorId id : {ErrorId::kPeerLost, ErrorId::kCollectiveFailed, ErrorId::kVersionGone})
    EXPECT_TRUE(EndsAttemptOnly(Status(id, "it ended")));
  for (const ErrorId id :
       {ErrorId::kRanksMissing, ErrorId::kServerGone, ErrorId::kStatesLost, ErrorId::kNonFinite, ErrorId::kRcacheTooSmall})
    EXPECT_FALSE(EndsAttemptOnly(Status(id, "it ended")));
}

TEST(ExplainEnd, LostStatesCannotGoOn) {
  const Status told = ExplainEnd(Status(ErrorId::kStatesLost, "lost"), "j", true);
  EXPECT_EQ(told.exit_code(), kExitCorrupt);
  EXPECT_THAT(told.Format(), HasSubstr("nothing to continue"));
  EXPECT_THAT(told.Format(), HasSubstr("anew at step 1"));
}

TEST(ExplainPrivateEnd, AServerThatEndedTookTheStatesWithIt) {
  const Status told = ExplainPrivateEnd(Status(ErrorId::kServerGone, "it ended").Where("there"), "last words");
  EXPECT_EQ(told.id(), ErrorId::kStatesLost);
  EXPECT_EQ(told.where(), "there");
  EXPECT_THAT(told.Format(), HasSubstr("last words"));
  EXPECT_THAT(told.Format(), HasSubstr("nothing to continue"));
  EXPECT_EQ(ExplainPrivateEnd(Status(ErrorId::kServerGone, "it ended"), "").why(), "it ended");
  EXPECT_EQ(ExplainPrivateEnd(Status(ErrorId::kPoolFull, "full"), "last words").id(), ErrorId::kPoolFull);
}

TEST(ExplainEnd, LeavesOtherErrorsAsTheyAre) {
  const Status told = ExplainEnd(Status(ErrorId::kNonFinite, "not finite"), "j", true);
  EXPECT_EQ(told.Format(), Status(ErrorId::kNonFinite, "not finite").Format());
}

}  // namespace resume_rules_test
}  // namespace tidepool::trainer

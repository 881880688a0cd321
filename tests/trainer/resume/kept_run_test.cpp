// What the run's folder says of a job that was kept, where no memserver says more.
#include "trainer/run/resuming/kept_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace tidepool::trainer {
namespace kept_run_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

class KeptRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/tidepool-kept-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    options_.output.out_dir = name;
  }
  void TearDown() override { std::filesystem::remove_all(options_.output.out_dir); }

  KeptRun Run(const std::string& job = "j") const { return KeptRun(options_, job); }
  // Nobody serves there.
  std::string NoServer() const { return options_.output.out_dir + "/no-server"; }
  Status MayBegin(const std::string& job = "j", Version sealed = 0) const {
    return Run(job).MayBegin(NoServer(), sealed);
  }

  RunOptions options_;
};

TEST_F(KeptRunTest, AFreshFolderExpectsNothing) {
  EXPECT_TRUE(MayBegin().ok());
}

TEST_F(KeptRunTest, AJobWithASealedStepIsExpectedUntilItIsBroughtToItsEnd) {
  KeptRun run = Run();
  ASSERT_TRUE(run.Sealed("/run/tidepool").ok());
  const Status refused = MayBegin();
  EXPECT_EQ(refused.id(), ErrorId::kStatesLost);
  EXPECT_EQ(refused.exit_code(), kExitCorrupt);
  EXPECT_THAT(refused.Format(), AllOf(HasSubstr("unfinished.job"), HasSubstr("/run/tidepool"),
                                      HasSubstr("--or-new")));
  EXPECT_TRUE(MayBegin("another").ok()) << "a job of another name";
  run.Ended();
  EXPECT_TRUE(MayBegin().ok());
}

TEST_F(KeptRunTest, WhoeverSaysOrNewBeginsAnew) {
  KeptRun run = Run();
  ASSERT_TRUE(run.Sealed("/run/tidepool").ok());
  options_.job.or_new = true;
  EXPECT_TRUE(MayBegin("j", 7).ok());
}

TEST_F(KeptRunTest, StepsThatThisProcessHasSealedAreExpectedWithoutAFolder) {
  const std::string out = options_.output.out_dir;
  options_.output.out_dir.clear();
  EXPECT_THAT(MayBegin("j", 7).Format(), HasSubstr("sealed step 7"));
  EXPECT_TRUE(Run().Sealed("/run/tidepool").ok());
  EXPECT_TRUE(MayBegin().ok());
  options_.output.out_dir = out;
}

TEST_F(KeptRunTest, OfAPrivateServerNothingIsKept) {
  options_.server.standalone = true;
  ASSERT_TRUE(Run().Sealed("/run/tidepool").ok());
  EXPECT_TRUE(std::filesystem::is_empty(options_.output.out_dir));
  EXPECT_TRUE(MayBegin("j", 7).ok());
}

TEST_F(KeptRunTest, AFolderThatCannotBeWrittenIsAnErrorOfTheStep) {
  std::filesystem::create_directory(options_.output.out_dir + "/unfinished.job.new");
  EXPECT_EQ(Run().Sealed("/run/tidepool").id(), ErrorId::kFileWriteFailed);
}

TEST_F(KeptRunTest, WithoutAnAnswerItIsKeptForTheLease) {
  EXPECT_EQ(Run().Until(NoServer()), "kept for memserver's --lease");
}

}  // namespace kept_run_test
}  // namespace tidepool::trainer

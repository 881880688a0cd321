// Folders for a checkpoint's writer: what a killed process leaves is removed by the next one.
#include "trainer/checkpoint/stage_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/clock.h"
#include "tests/process/rig/child_process.h"

namespace tidepool::trainer {
namespace stage_folder_test {

namespace fs = std::filesystem;

class StageFolders : public ::testing::Test {
 protected:
  StageFolders() { setenv("TMPDIR", place_.path().c_str(), 1); }
  ~StageFolders() override { unsetenv("TMPDIR"); }
  StageFolder Make() {
    auto made = MakeStage();
    EXPECT_TRUE(made.ok()) << made.status().Format();
    return std::move(made).value();
  }
  // As if nobody had touched it since.
  static void Age(const std::string& path, int64_t seconds) {
    const timespec then{.tv_sec = WallSeconds() - seconds, .tv_nsec = 0};
    const timespec times[2] = {then, then};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  const testing::TemporaryDirectory place_;
};

TEST_F(StageFolders, OfAKilledProcessIsRemovedByTheNext) {
  std::string dead;
  {
    const StageFolder stage = Make();  // its lock ends here, as with its process
    dead = stage.path;
    std::ofstream(dead + "/config.json") << "{}";
    fs::create_directory(dead + "/deeper");
  }
  EXPECT_TRUE(fs::path(dead).parent_path() == place_.path());
  Make();
  EXPECT_TRUE(fs::exists(dead)) << "it may be another trainer's that was made just now";
  Age(dead, kStageLeftOverSeconds + 1);
  Make();
  EXPECT_FALSE(fs::exists(dead));
}

TEST_F(StageFolders, InUseStayHoweverOld) {
  const StageFolder used = Make();
  ASSERT_TRUE(used.lock.valid());
  Age(used.path, 100 * kStageLeftOverSeconds);
  const std::string other = place_.path() + "/another-folder",
                    file = place_.path() + "/tidepool-checkpoint-file";
  fs::create_directory(other);
  std::ofstream(file) << "x";
  Age(other, 100 * kStageLeftOverSeconds);
  Age(file, 100 * kStageLeftOverSeconds);
  Make();
  for (const std::string& path : {used.path, other, file}) EXPECT_TRUE(fs::exists(path)) << path;
}

TEST_F(StageFolders, WithoutATemporaryFolderSayWhatToSet) {
  setenv("TMPDIR", (place_.path() + "/none").c_str(), 1);
  const auto made = MakeStage();
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().id(), ErrorId::kSaveFailed);
  EXPECT_NE(made.status().fix().find("TMPDIR"), std::string::npos) << made.status().Format();
}

}  // namespace stage_folder_test
}  // namespace tidepool::trainer

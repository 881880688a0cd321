// The profile of a drive: what was measured comes back, and what cannot be trusted is named and not
// used.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/units.h"
#include "nvme/drive_profile.h"
#include "nvme/slot_directory.h"
#include "tests/nvme/scratch_directory.h"

namespace tidepool::nvme {
namespace drive_profile_test {

class DriveProfileTest : public ::testing::Test {
 protected:
  FoundProfile Found() {
    auto opened = SlotDirectory::Open({.path = directory_.path(), .bytes = kMiB}, &clock_);
    EXPECT_TRUE(opened.ok()) << opened.status().Format();
    return opened.ok() ? opened->profile() : FoundProfile{};
  }
  void Put(const std::string& text) const { std::ofstream(File(), std::ios::trunc) << text; }
  std::string File() const { return directory_.path() + "/" + kProfileFileName; }

  const ScratchDirectory directory_;
  SteadyClock clock_;
};

TEST_F(DriveProfileTest, WhatIsWrittenIsFoundAgainAndTheLastOneCounts) {
  EXPECT_FALSE(Found().profile.has_value());
  EXPECT_EQ(Found().why_not, "") << "none is no fault";
  for (const DriveProfile& profile : {DriveProfile{kMiB, 64}, DriveProfile{kPageBytes, 1},
                                      DriveProfile{kDriveBlockMax, kDriveDepthMax}}) {
    ASSERT_TRUE(WriteProfile(directory_.path(), profile).ok());
    EXPECT_EQ(Found().profile, profile);
  }
  struct stat facts {};
  ASSERT_EQ(stat(File().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_EQ(WriteProfile(directory_.path() + "/none", {kMiB, 64}).id(), ErrorId::kNvmeDirectoryBad);
}

TEST_F(DriveProfileTest, TextThatNobodyMeasuredIsNamedAndNotUsed) {
  const std::string good = TextOf({.block_bytes = kMiB, .depth = 64});
  ASSERT_EQ(ParseProfile(good), (DriveProfile{kMiB, 64}));
  for (uint64_t length = 0; length < good.size(); ++length)
    EXPECT_FALSE(ParseProfile(good.substr(0, length)).has_value()) << length;
  for (uint64_t i = 0; i < good.size(); ++i) {
    std::string other = good;
    other[i] = 'x';
    EXPECT_FALSE(ParseProfile(other).has_value()) << i;
  }
  for (const DriveProfile& wrong :
       {DriveProfile{0, 64}, DriveProfile{kPageBytes + 1, 64},
        DriveProfile{kDriveBlockMax + kPageBytes, 64}, DriveProfile{kMiB, 0},
        DriveProfile{kMiB, kDriveDepthMax + 1}}) {
    Put(TextOf(wrong));
    EXPECT_FALSE(Found().profile.has_value()) << TextOf(wrong);
    EXPECT_NE(Found().why_not, "");
  }
  // Numbers that would be good ones in 32 bits, and more than any number holds.
  for (const char* block : {"4294971392", "-4290772992", "99999999999999999999"}) {
    Put(std::string("tidepool drive profile 1\nblock ") + block + "\ndepth 64\n");
    EXPECT_FALSE(Found().profile.has_value()) << block;
    EXPECT_NE(Found().why_not, "");
  }
  Put("");
  EXPECT_NE(Found().why_not, "");
  Put(good + std::string(1000, '\n'));
  EXPECT_NE(Found().why_not, "");
}

// Nothing hangs on it, and nothing is followed.
TEST_F(DriveProfileTest, WhatIsNoFileOfOursIsNotUsed) {
  std::filesystem::create_symlink("/proc/self/status", File());
  EXPECT_NE(Found().why_not, "");
  std::filesystem::remove(File());
  ASSERT_EQ(mkfifo(File().c_str(), 0600), 0);
  EXPECT_NE(Found().why_not, "");
}

}  // namespace drive_profile_test
}  // namespace tidepool::nvme

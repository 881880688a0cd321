// The rules under which a directory is opened, and the fence.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/units.h"
#include "nvme/slot_directory.h"
#include "tests/nvme/scratch_directory.h"

namespace tidepool::nvme {
namespace slot_directory_test {

class SlotDirectoryTest : public ::testing::Test {
 protected:
  ErrorId Opened(const std::string& path, uint64_t bytes = kMiB, int64_t wait_ns = 50 * kNsPerMs) {
    auto opened = SlotDirectory::Open({path, bytes, wait_ns, 50 * kNsPerMs}, &clock_);
    text_ = opened.status().Format();
    return opened.status().id();
  }
  std::string Dir() const { return directory_.path(); }

  ScratchDirectory directory_;
  SteadyClock clock_;
  std::string text_;
};

TEST_F(SlotDirectoryTest, TakesItsSpaceAtOnceAndFindsItsManifestAgain) {
  uint64_t store = 0;
  {
    auto opened = SlotDirectory::Open({Dir(), kMiB, kNsPerSecond}, &clock_);
    ASSERT_TRUE(opened.ok()) << opened.status().Format();
    struct stat facts {};
    ASSERT_EQ(fstat(opened->data_fd(), &facts), 0);
    EXPECT_EQ(facts.st_size, static_cast<off_t>(kMiB));
    EXPECT_GE(facts.st_blocks * 512, static_cast<off_t>(kMiB));
    EXPECT_EQ(facts.st_mode & 0777, 0600u);
    store = opened->manifest().store;
    EXPECT_TRUE(opened->damage().empty());
  }
  auto again = SlotDirectory::Open({Dir(), kMiB, kNsPerSecond}, &clock_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->manifest().store, store);
}

TEST_F(SlotDirectoryTest, LinksWrongModesAndForeignFilesAreRefused) {
  EXPECT_EQ(Opened(Dir() + "/none"), ErrorId::kNvmeDirectoryBad);
  std::filesystem::create_directory(Dir() + "/real");
  chmod((Dir() + "/real").c_str(), 0700);
  std::filesystem::create_symlink(Dir() + "/real", Dir() + "/link");
  EXPECT_EQ(Opened(Dir() + "/link"), ErrorId::kNvmeDirectoryBad);
  EXPECT_NE(text_.find("symbolic link"), std::string::npos) << text_;
  EXPECT_EQ(Opened(Dir() + "/real"), ErrorId::kNone) << text_;
  chmod((Dir() + "/real").c_str(), 0755);
  EXPECT_EQ(Opened(Dir() + "/real"), ErrorId::kNvmeDirectoryBad);
  chmod((Dir() + "/real").c_str(), 0700);
  chmod((Dir() + "/real/states").c_str(), 0644);
  EXPECT_EQ(Opened(Dir() + "/real"), ErrorId::kNvmeDirectoryBad);
  chmod((Dir() + "/real/states").c_str(), 0600);
  std::filesystem::create_hard_link(Dir() + "/real/states", Dir() + "/second_name");
  EXPECT_EQ(Opened(Dir() + "/real"), ErrorId::kNvmeDirectoryBad);
}

TEST_F(SlotDirectoryTest, ADirectoryThatIsSwappedDuringARunStaysThatOfWhoeverHasIt) {
  const std::string path = Dir() + "/states", elsewhere = Dir() + "/moved";
  std::filesystem::create_directory(path);
  chmod(path.c_str(), 0700);
  auto opened = SlotDirectory::Open({path, kMiB, kNsPerSecond}, &clock_);
  ASSERT_TRUE(opened.ok()) << opened.status().Format();
  std::filesystem::rename(path, elsewhere);
  std::filesystem::create_directory(path);
  chmod(path.c_str(), 0700);
  struct stat held {
  }, moved{};
  ASSERT_EQ(fstat(opened->data_fd(), &held), 0);
  ASSERT_EQ(stat((elsewhere + "/states").c_str(), &moved), 0);
  EXPECT_EQ(held.st_ino, moved.st_ino);
  EXPECT_EQ(Opened(elsewhere), ErrorId::kNvmeInUse) << "the fence went with it";
  auto other = SlotDirectory::Open({path, kMiB, kNsPerSecond}, &clock_);
  ASSERT_TRUE(other.ok()) << other.status().Format();
  EXPECT_NE(other->manifest().store, opened->manifest().store);
}

TEST_F(SlotDirectoryTest, AFileThatIsALinkADeviceOrAPipeIsRefused) {
  const std::string states = Dir() + "/states";
  std::ofstream(Dir() + "/elsewhere").put('x');
  std::filesystem::create_symlink(Dir() + "/elsewhere", states);
  EXPECT_EQ(Opened(Dir()), ErrorId::kNvmeDirectoryBad);
  unlink(states.c_str());
  ASSERT_EQ(mkfifo(states.c_str(), 0600), 0);
  EXPECT_EQ(Opened(Dir()), ErrorId::kNvmeDirectoryBad);
}

TEST_F(SlotDirectoryTest, ForeignDirectoriesAreRefused) {
  if (geteuid() != 0) {
    EXPECT_EQ(Opened("/root"), ErrorId::kNvmeDirectoryBad);
    return;
  }
  ASSERT_EQ(chown(Dir().c_str(), 4711, 4711), 0);
  EXPECT_EQ(Opened(Dir()), ErrorId::kNvmeDirectoryBad);
  EXPECT_NE(text_.find("4711"), std::string::npos) << text_;
}

// In a child that is not root, which may write everywhere.
TEST_F(SlotDirectoryTest, ADirectoryThatCannotBeWrittenIsRefused) {
  constexpr uid_t kNobody = 65534;
  if (geteuid() == 0) {
    ASSERT_EQ(chown(Dir().c_str(), kNobody, kNobody), 0);
  }
  ASSERT_EQ(chmod(Dir().c_str(), 0500), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) _exit(10);
    const bool refused = Opened(Dir()) == ErrorId::kNvmeDirectoryBad;
    _exit(refused && text_.find("Permission denied") != std::string::npos ? 0 : 11);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(SlotDirectoryTest, TooLittleRoomIsToldAtStart) {
  EXPECT_EQ(Opened(Dir(), uint64_t{1} << 52), ErrorId::kNvmeSpaceShort) << text_;
}

TEST_F(SlotDirectoryTest, TwoServersOnOneDirectoryTheSecondIsToldOfTheFirst) {
  auto first = SlotDirectory::Open({Dir(), kMiB, kNsPerSecond}, &clock_);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Opened(Dir(), kMiB, 60 * kNsPerSecond), ErrorId::kNvmeInUse);
  EXPECT_NE(text_.find(std::to_string(getpid())), std::string::npos) << text_;
}

TEST_F(SlotDirectoryTest, TheWritesOfADeadServerAreWaitedFor) {
  ASSERT_EQ(Opened(Dir()), ErrorId::kNone) << text_;
  // Its process has ended, but something of it holds the file a while yet.
  std::ofstream(Dir() + "/owner") << "999999999\n";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t ghost = fork();
  if (ghost == 0) {
    const int fd = open((Dir() + "/states").c_str(), O_RDWR);
    if (flock(fd, LOCK_EX) != 0 || write(ready[1], "x", 1) != 1) _exit(1);
    usleep(300'000);
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const int64_t begin = clock_.NowNs();
  EXPECT_EQ(Opened(Dir(), kMiB, 60 * kNsPerSecond), ErrorId::kNone) << text_;
  EXPECT_GT(clock_.NowNs() - begin, 100 * kNsPerMs);
  waitpid(ghost, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(SlotDirectoryTest, AnOwnerThatHasEndedAndIsNotYetTakenNoteOfIsAGhost) {
  ASSERT_EQ(Opened(Dir()), ErrorId::kNone) << text_;
  const pid_t zombie = fork();
  if (zombie == 0) _exit(0);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(zombie), &ended, WEXITED | WNOWAIT), 0);
  std::ofstream(Dir() + "/owner") << zombie << "\n";
  const int fd = open((Dir() + "/states").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  EXPECT_EQ(Opened(Dir(), kMiB, 200 * kNsPerMs), ErrorId::kNvmeInUse);
  EXPECT_NE(text_.find("has ended"), std::string::npos) << text_;
  close(fd);
  waitpid(zombie, nullptr, 0);
}

TEST_F(SlotDirectoryTest, ADamagedManifestIsPassedOverForTheOther) {
  ASSERT_EQ(Opened(Dir()), ErrorId::kNone);
  const auto damage = [this](const char* name) {
    std::fstream file(Dir() + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.put('!');
  };
  damage("manifest.0");
  auto opened = SlotDirectory::Open({Dir(), kMiB, kNsPerSecond}, &clock_);
  ASSERT_TRUE(opened.ok());
  EXPECT_FALSE(opened->damage().empty());
  const uint64_t store = opened->manifest().store;
  opened = Status(ErrorId::kInternal, "closed");
  damage("manifest.1");
  auto renewed = SlotDirectory::Open({Dir(), kMiB, kNsPerSecond}, &clock_);
  ASSERT_TRUE(renewed.ok());
  EXPECT_NE(renewed->manifest().store, store)
      << "another store: pieces of the lost one are not believed";
}

}  // namespace slot_directory_test
}  // namespace tidepool::nvme

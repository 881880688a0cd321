#include "memserver/control/socket_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "memserver/control/bounds/log_limiter.h"
#include "memserver/control/peer_identity.h"
#include "shm/fd_socket.h"
#include "shm/socket_path.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::memserver {
namespace socket_directory_test {

class SocketDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/tp-sockets-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    path_ = root_ + "/s";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string root_, path_;
};

TEST_F(SocketDirectoryTest, IsMadeForThisUserAloneAndEmptiedAtTheEnd) {
  auto claimed = SocketDirectory::Claim(path_, RealClock());
  ASSERT_TRUE(claimed.ok()) << claimed.status().Format();
  struct stat about {};
  ASSERT_EQ(stat(path_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0700U);
  const auto socket = shm::ListenSocket(shm::DataSocketPath(path_));
  ASSERT_TRUE(socket.ok());
  claimed.value().reset();
  EXPECT_TRUE(std::filesystem::is_empty(path_));
}

TEST_F(SocketDirectoryTest, ASecondOwnerIsRefusedWithThePidOfTheFirst) {
  auto first = SocketDirectory::Claim(path_, RealClock());
  ASSERT_TRUE(first.ok());
  const Status refused = SocketDirectory::Claim(path_, RealClock()).status();
  EXPECT_EQ(refused.id(), ErrorId::kSocketInUse);
  EXPECT_NE(refused.what().find(std::to_string(getpid())), std::string::npos) << refused.Format();
  first.value().reset();
  EXPECT_TRUE(SocketDirectory::Claim(path_, RealClock()).ok());
}

TEST_F(SocketDirectoryTest, WhatADeadOwnerLeftIsRemoved) {
  const pid_t child = fork();
  if (child == 0) {
    auto claimed = SocketDirectory::Claim(path_, RealClock());
    const auto socket = shm::ListenSocket(shm::DataSocketPath(path_));
    _exit(claimed.ok() && socket.ok() ? 0 : 1);  // without a destructor, as by SIGKILL
  }
  int state = 0;
  waitpid(child, &state, 0);
  ASSERT_EQ(WEXITSTATUS(state), 0);
  ASSERT_TRUE(std::filesystem::exists(shm::DataSocketPath(path_)));
  ASSERT_TRUE(std::filesystem::exists(shm::LockFilePath(path_)));
  const auto heir = SocketDirectory::Claim(path_, RealClock());
  ASSERT_TRUE(heir.ok()) << heir.status().Format();
  EXPECT_FALSE(std::filesystem::exists(shm::DataSocketPath(path_)));
}

TEST_F(SocketDirectoryTest, AFileALinkOrAnOpenDirectoryIsRefused) {
  std::ofstream(root_ + "/file") << "x";
  EXPECT_EQ(SocketDirectory::Claim(root_ + "/file", RealClock()).status().id(),
            ErrorId::kSocketFailed);
  std::filesystem::create_directory(root_ + "/real");
  std::filesystem::create_symlink(root_ + "/real", root_ + "/link");
  EXPECT_EQ(SocketDirectory::Claim(root_ + "/link", RealClock()).status().id(),
            ErrorId::kSocketFailed);
  std::filesystem::permissions(root_ + "/real", std::filesystem::perms::all);
  EXPECT_EQ(SocketDirectory::Claim(root_ + "/real", RealClock()).status().id(),
            ErrorId::kSocketFailed);
  EXPECT_EQ(SocketDirectory::Claim(root_ + "/no/such/parent", RealClock()).status().id(),
            ErrorId::kSocketFailed);
}

TEST_F(SocketDirectoryTest, ServiceModeLetsItsGroupInAndPrivateModeShutsAgain) {
  Access access = PrivateAccess();
  access.is_service = true;
  access.group = getegid();
  const auto mode = [](const std::string& path) {
    struct stat about {};
    return stat(path.c_str(), &about) == 0 ? about.st_mode & 0777U : 0U;
  };
  {
    auto claimed = SocketDirectory::Claim(path_, RealClock());
    ASSERT_TRUE(claimed.ok());
    const auto data = shm::ListenSocket(shm::DataSocketPath(path_)),
               admin = shm::ListenSocket(shm::AdminSocketPath(path_));
    ASSERT_TRUE(data.ok() && admin.ok());
    EXPECT_TRUE(claimed.value()->Open(access).ok());
    EXPECT_EQ(mode(path_), 0750U);
    EXPECT_EQ(mode(shm::DataSocketPath(path_)), 0660U);
    EXPECT_EQ(mode(shm::AdminSocketPath(path_)), 0660U);
    EXPECT_EQ(mode(shm::LockFilePath(path_)), 0600U);
  }
  auto again = SocketDirectory::Claim(path_, RealClock());
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again.value()->Open(PrivateAccess()).ok());
  EXPECT_EQ(mode(path_), 0700U);
}

TEST_F(SocketDirectoryTest, ALockFileThatIsALinkIsNotFollowed) {
  std::filesystem::create_directory(path_);
  std::filesystem::create_symlink("/etc/passwd", shm::LockFilePath(path_));
  EXPECT_EQ(SocketDirectory::Claim(path_, RealClock()).status().id(), ErrorId::kSocketFailed);
}

TEST(PeerIdentity, NamesTheProcessAtTheOtherEnd) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd left(pair[0]), right(pair[1]);
  const auto peer = IdentifyPeer(left.get());
  ASSERT_TRUE(peer.ok()) << peer.status().Format();
  EXPECT_EQ(peer.value().user.pid, getpid());
  EXPECT_EQ(peer.value().user.uid, getuid());
  EXPECT_TRUE(peer.value().pidfd.valid());
  EXPECT_TRUE(CheckMayConnect(PrivateAccess(), peer.value().user).ok());
  EXPECT_FALSE(IdentifyPeer(-1).ok());
}

TEST(LogLimiter, AllowsOneLineAnIntervalAndCountsTheRest) {
  LogLimiter limiter(100);
  EXPECT_EQ(limiter.Allow(0), 0U);
  EXPECT_FALSE(limiter.Allow(50).has_value());
  EXPECT_FALSE(limiter.Allow(99).has_value());
  EXPECT_EQ(limiter.Allow(100), 2U);
  EXPECT_EQ(limiter.Allow(300), 0U);
}

}  // namespace socket_directory_test
}  // namespace tidepool::memserver

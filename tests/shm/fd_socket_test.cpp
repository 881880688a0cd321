#include "shm/fd_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::shm {
namespace fd_socket_test {

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

class FdSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> pair{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
    left_ = UniqueFd(pair[0]);
    right_ = UniqueFd(pair[1]);
  }
  static std::vector<std::byte> Bytes(size_t count) {
    return std::vector<std::byte>(count, std::byte{42});
  }

  UniqueFd left_, right_;
  Packet packet_;
};

TEST_F(FdSocketTest, APacketArrivesWholeWithItsDescriptors) {
  const UniqueFd zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const std::array<int, 2> fds{zero.get(), zero.get()};
  ASSERT_EQ(SendPacket(left_.get(), Bytes(100), fds), SocketResult::kDone);
  ASSERT_EQ(ReceivePacket(right_.get(), 2, &packet_), SocketResult::kDone);
  EXPECT_EQ(packet_.bytes.size(), 100U);
  ASSERT_EQ(packet_.fds.size(), 2U);
  char c = 'x';
  EXPECT_EQ(read(packet_.fds[1].get(), &c, 1), 1);
  EXPECT_EQ(c, '\0');
  EXPECT_NE(fcntl(packet_.fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(FdSocketTest, TheLargestPacketPassesAndNothingWaitsOnAnEmptySocket) {
  EXPECT_EQ(ReceivePacket(right_.get(), 0, &packet_), SocketResult::kWouldBlock);
  ASSERT_EQ(SendPacket(left_.get(), Bytes(kPacketBytesMax)), SocketResult::kDone);
  EXPECT_EQ(ReceivePacket(right_.get(), 0, &packet_), SocketResult::kDone);
  EXPECT_EQ(packet_.bytes.size(), kPacketBytesMax);
}

TEST_F(FdSocketTest, MoreDescriptorsThanAllowedMakeThePacketMalformedAndLeakNone) {
  const UniqueFd zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  for (uint32_t allowed = 0; allowed < kPacketFdsMax; ++allowed) {
    for (size_t sent = allowed + 1; sent <= kPacketFdsMax; ++sent) {
      const std::vector<int> fds(sent, zero.get());
      ASSERT_EQ(SendPacket(left_.get(), Bytes(8), fds), SocketResult::kDone);
      const size_t before = OpenDescriptors();
      EXPECT_EQ(ReceivePacket(right_.get(), allowed, &packet_), SocketResult::kMalformed)
          << allowed << " allowed, " << sent << " sent";
      EXPECT_EQ(OpenDescriptors(), before) << allowed << " allowed, " << sent << " sent";
    }
  }
}

TEST_F(FdSocketTest, ATruncatedPacketIsMalformedNotShorter) {
  auto bytes = Bytes(kPacketBytesMax + 1);
  ASSERT_EQ(send(left_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(ReceivePacket(right_.get(), 0, &packet_), SocketResult::kMalformed);
}

TEST_F(FdSocketTest, AClosedPeerIsSeenByBothDirectionsWithoutASignal) {
  left_.Reset();
  EXPECT_EQ(ReceivePacket(right_.get(), 0, &packet_), SocketResult::kClosed);
  EXPECT_EQ(SendPacket(right_.get(), Bytes(8)), SocketResult::kClosed);
}

TEST_F(FdSocketTest, TheLastWordsOfAPeerThatClosedWithUnreadPacketsArrive) {
  ASSERT_EQ(SendPacket(left_.get(), Bytes(8)), SocketResult::kDone);
  ASSERT_EQ(SendPacket(right_.get(), Bytes(9)), SocketResult::kDone);
  right_.Reset();
  ASSERT_EQ(ReceivePacket(left_.get(), 0, &packet_), SocketResult::kDone);
  EXPECT_EQ(packet_.bytes.size(), 9U);
  EXPECT_EQ(ReceivePacket(left_.get(), 0, &packet_), SocketResult::kClosed);
}

TEST_F(FdSocketTest, AFullSocketWouldBlock) {
  SocketResult result = SocketResult::kDone;
  for (int i = 0; i < 10'000 && result == SocketResult::kDone; ++i)
    result = SendPacket(left_.get(), Bytes(kPacketBytesMax));
  EXPECT_EQ(result, SocketResult::kWouldBlock);
}

TEST_F(FdSocketTest, WaitingEndsAtItsTimeLimitOrWithTheEvent) {
  EXPECT_FALSE(WaitForSocket(right_.get(), POLLIN, 5 * kNsPerMs));
  ASSERT_EQ(SendPacket(left_.get(), Bytes(8)), SocketResult::kDone);
  EXPECT_TRUE(WaitForSocket(right_.get(), POLLIN, 5 * kNsPerSecond));
}

class ListenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "tp-listen-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(ListenTest, AClientConnectsAndTheSocketBelongsToItsUserAlone) {
  const std::string path = directory_ + "/data.sock";
  const auto listener = ListenSocket(path);
  ASSERT_TRUE(listener.ok()) << listener.status().Format();
  struct stat about {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0600U);
  const auto client = ConnectSocket(RealClock(), path, kNsPerSecond);
  ASSERT_TRUE(client.ok()) << client.status().Format();
}

TEST_F(ListenTest, WithoutAServerTheErrorNamesThePathAndTheRemedy) {
  const auto client = ConnectSocket(RealClock(), directory_ + "/data.sock", kNsPerSecond);
  ASSERT_EQ(client.status().id(), ErrorId::kNoServer);
  EXPECT_EQ(client.status().exit_code(), kExitNoServer);
  EXPECT_NE(client.status().fix().find("memserver run"), std::string::npos);
  EXPECT_EQ(client.status().fix().find("--standalone"), std::string::npos) << "not all have it";
  const std::string text = client.status().Format();
  EXPECT_NE(text.find(directory_), std::string::npos) << text;
  EXPECT_NE(text.find("memserver run"), std::string::npos) << text;
}

TEST_F(ListenTest, ATooLongPathIsRefusedBeforeAnythingIsMade) {
  const std::string path = directory_ + "/" + std::string(120, 'x');
  EXPECT_EQ(ListenSocket(path).status().id(), ErrorId::kSocketFailed);
  EXPECT_EQ(ConnectSocket(RealClock(), path, 0).status().id(), ErrorId::kSocketFailed);
}

TEST_F(ListenTest, APathInUseIsAnError) {
  const std::string path = directory_ + "/data.sock";
  const auto first = ListenSocket(path);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(ListenSocket(path).status().id(), ErrorId::kSocketFailed);
}

}  // namespace fd_socket_test
}  // namespace tidepool::shm

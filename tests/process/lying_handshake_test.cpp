// A client that lies on the control socket: every lie is answered with a named reason or a closed
// connection, nothing leaks, and the server goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "shm/fd_socket.h"
#include "shm/socket_path.h"
#include "tests/fakes/real_clock.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/lying_client.h"

namespace tidepool::testing {
namespace lying_handshake_test {

constexpr int64_t kLimit = 10 * kNsPerSecond;

shm::JobSpec Spec() {
  ThinOptions options;
  options.name = "liar";
  return SpecOf(options);
}

class LyingHandshake : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(HonestRuns());
    descriptors_ = SettledDescriptors();
  }
  void TearDown() override {
    socket_.Reset();
    EXPECT_EQ(WaitForHoldings(daemon_.socket_dir(), kNothing, kLimit), kNothing);
    EXPECT_TRUE(HonestRuns());  // behind all liars that still wait to be accepted
    EXPECT_EQ(SettledDescriptors(), descriptors_);
  }
  bool HonestRuns() {
    ThinOptions options;
    options.socket_dir = daemon_.socket_dir();
    options.name = "honest";
    const auto result = RunThinJob(options);
    return result.ok() && WaitForHoldings(daemon_.socket_dir(), kNothing, kLimit) == kNothing;
  }

  void Connect() {
    auto connected =
        shm::ConnectSocket(RealClock(), shm::DataSocketPath(daemon_.socket_dir()), kLimit);
    ASSERT_TRUE(connected.ok()) << connected.status().Format();
    socket_ = std::move(connected).value();
  }
  void SendBytes(const std::vector<std::byte>& bytes, std::span<const int> fds = {}) {
    ASSERT_EQ(shm::SendPacket(socket_.get(), bytes, fds), shm::SocketResult::kDone);
  }
  void SendFrame(const shm::Frame& frame, std::span<const int> fds = {}) {
    SendBytes(shm::EncodeFrame(frame), fds);
  }

  // The reason that the server gives before it closes; ok when it closes without a word.
  Status AwaitRefusal() {
    Status reason;
    for (;;) {
      if (!shm::WaitForSocket(socket_.get(), POLLIN, kLimit))
        return Status(ErrorId::kWaitTimeout, "the connection stays open");
      shm::Packet packet;
      const auto result = shm::ReceivePacket(socket_.get(), shm::kPacketFdsMax, &packet);
      if (result == shm::SocketResult::kClosed) return reason;
      if (result != shm::SocketResult::kDone) continue;
      const auto frame = shm::DecodeFrame(packet.bytes);
      if (!frame.ok()) return frame.status();
      if (const auto* refused = std::get_if<shm::RefusedFrame>(&frame.value()))
        reason = refused->why;
      if (const auto* ended = std::get_if<shm::EndedFrame>(&frame.value())) reason = ended->why;
    }
  }
  // An honest session whose socket is ours.
  void Attach() {
    Connect();
    for (const shm::Frame& frame : GreetingOf(Spec(), 0)) SendFrame(frame);
    ASSERT_TRUE(shm::WaitForSocket(socket_.get(), POLLIN, kLimit));
    shm::Packet packet;
    ASSERT_EQ(shm::ReceivePacket(socket_.get(), shm::kPacketFdsMax, &packet),
              shm::SocketResult::kDone);
    ASSERT_EQ(packet.fds.size(), shm::kWelcomeFds);
  }

  const DaemonInProcess daemon_;
  UniqueFd socket_;
  size_t descriptors_ = 0;
};

shm::HelloFrame Hello(const shm::JobSpec& spec) {
  return std::get<shm::HelloFrame>(GreetingOf(spec, 0)[0]);
}

TEST_F(LyingHandshake, BytesOfAnotherProtocolAreRefused) {
  for (const std::string text : {"GET / HTTP/1.1\r\n\r\n", "x", "TPDFTPDFTPDFTPDF"}) {
    Connect();
    const auto bytes = std::as_bytes(std::span(text));
    SendBytes({bytes.begin(), bytes.end()});
    EXPECT_EQ(AwaitRefusal().id(), ErrorId::kHandshakeBad) << text;
  }
}

TEST_F(LyingHandshake, AnotherProtocolVersionIsRefusedByNamingBoth) {
  Connect();
  shm::HelloFrame hello = Hello(Spec());
  hello.protocols = {77, 78};
  SendFrame(hello);
  const Status reason = AwaitRefusal();
  EXPECT_EQ(reason.id(), ErrorId::kAbiMismatch);
  EXPECT_NE(reason.what().find("versions 77 to 78"), std::string::npos) << reason.Format();
  EXPECT_NE(reason.what().find(Text(shm::kOwnProtocols)), std::string::npos) << reason.Format();
}

TEST_F(LyingHandshake, AFingerprintThatDoesNotFitIsRefused) {
  Connect();
  auto greeting = GreetingOf(Spec(), 0);
  std::get<shm::HelloFrame>(greeting[0]).fingerprint ^= 1;
  for (const shm::Frame& frame : greeting) SendFrame(frame);
  EXPECT_EQ(AwaitRefusal().id(), ErrorId::kHandshakeBad);
}

TEST_F(LyingHandshake, ADescriptionLongerThanAnnouncedIsRefused) {
  Connect();
  auto greeting = GreetingOf(Spec(), 0);
  std::get<shm::HelloFrame>(greeting[0]).spec_bytes -= 1;
  for (const shm::Frame& frame : greeting) SendFrame(frame);
  EXPECT_EQ(AwaitRefusal().id(), ErrorId::kHandshakeBad);
}

TEST_F(LyingHandshake, ABrokenDescriptionIsRefusedWithTheBrokenInvariant) {
  Connect();
  shm::JobSpec spec = Spec();
  spec.chunks[1].elements += 1;
  for (const shm::Frame& frame : GreetingOf(spec, 0)) SendFrame(frame);
  const Status reason = AwaitRefusal();
  EXPECT_EQ(reason.id(), ErrorId::kJobSpecBad);
  EXPECT_NE(reason.what().find("chunk 1"), std::string::npos) << reason.Format();
}

TEST_F(LyingHandshake, FramesOutOfOrderAreRefused) {
  const auto greeting = GreetingOf(Spec(), 0);
  const std::vector<std::vector<shm::Frame>> orders{
      {greeting[1]},
      {greeting[0], greeting[0]},
      {shm::GoodbyeFrame{}},
      {shm::SchedulePartFrame{1, {0}}},
      {greeting[0], shm::GoodbyeFrame{}},
      {shm::WelcomeFrame{}},  // only a server says this; it also misses its descriptors
      {shm::PeerLostFrame{0}},
  };
  for (const auto& frames : orders) {
    Connect();
    for (const shm::Frame& frame : frames) SendFrame(frame);
    EXPECT_EQ(AwaitRefusal().id(), ErrorId::kHandshakeBad) << shm::NameOf(frames.back());
  }
}

TEST_F(LyingHandshake, DescriptorsThatNobodyAskedForAreClosed) {
  const std::array<int, 4> fds{STDIN_FILENO, STDIN_FILENO, STDIN_FILENO, STDIN_FILENO};
  for (size_t count = 1; count <= fds.size(); ++count) {
    for (int i = 0; i < 20; ++i) {
      Connect();
      SendFrame(Hello(Spec()), std::span(fds).first(count));
      EXPECT_EQ(AwaitRefusal().id(), ErrorId::kHandshakeBad);
    }
  }
}

TEST_F(LyingHandshake, ATruncatedPacketIsRefused) {
  Connect();
  const std::vector<std::byte> large(shm::kPacketBytesMax + 1000);
  ASSERT_EQ(send(socket_.get(), large.data(), large.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(large.size()));
  EXPECT_EQ(AwaitRefusal().id(), ErrorId::kHandshakeBad);
}

TEST_F(LyingHandshake, ASecondGreetingInAnOpenSessionEndsIt) {
  Attach();
  SendFrame(Hello(Spec()));
  EXPECT_EQ(AwaitRefusal().id(), ErrorId::kHandshakeBad);
}

TEST_F(LyingHandshake, AScheduleOfUnknownChunksEndsTheSession) {
  Attach();
  SendFrame(shm::SchedulePartFrame{2, {0, 4}});
  EXPECT_EQ(AwaitRefusal().id(), ErrorId::kProtocolViolation);
}

TEST_F(LyingHandshake, AScheduleThatChangesItsLengthEndsTheSession) {
  Attach();
  SendFrame(shm::SchedulePartFrame{4, {0, 1, 2}});
  SendFrame(shm::SchedulePartFrame{2, {0, 1}});
  EXPECT_EQ(AwaitRefusal().id(), ErrorId::kProtocolViolation);
}

TEST_F(LyingHandshake, OnlyAnOPathDirectoryMayBeNamedForSaving) {
  const TemporaryDirectory directory;
  const UniqueFd readable(open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd file(
      open((directory.path() + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd file_path(open((directory.path() + "/file").c_str(), O_PATH | O_CLOEXEC));
  for (const int fd : {readable.get(), file.get(), file_path.get(),
                       socket_.get() >= 0 ? socket_.get() : STDIN_FILENO}) {
    Attach();
    SendFrame(shm::SaveFrame{0, "x"}, std::array{fd});
    EXPECT_EQ(AwaitRefusal().id(), ErrorId::kProtocolViolation);
    socket_.Reset();
    ASSERT_EQ(WaitForHoldings(daemon_.socket_dir(), kNothing, kLimit), kNothing);
  }
}

TEST_F(LyingHandshake, ASaveWithoutItsDirectoryEndsTheSession) {
  Attach();
  SendFrame(shm::SaveFrame{0, "x"});
  EXPECT_EQ(AwaitRefusal().id(), ErrorId::kHandshakeBad);
}

TEST_F(LyingHandshake, AFrameAfterGoodbyeChangesNothing) {
  Attach();
  SendFrame(shm::GoodbyeFrame{});
  // May already find the socket closed.
  shm::SendPacket(socket_.get(), shm::EncodeFrame(shm::GoodbyeFrame{}));
  EXPECT_NE(AwaitRefusal().id(), ErrorId::kWaitTimeout);
}

TEST_F(LyingHandshake, ThousandsOfDamagedGreetingsLeaveNoTrace) {
  SplitMix64 random(23);
  const auto greeting = GreetingOf(Spec(), 0);
  for (int round = 0; round < 1000; ++round) {
    Connect();
    for (const shm::Frame& frame : greeting) {
      auto bytes = shm::EncodeFrame(frame);
      for (uint64_t i = 0; i < random.Below(3); ++i)
        bytes[random.Below(bytes.size())] = static_cast<std::byte>(random.Next());
      if (shm::SendPacket(socket_.get(), bytes) != shm::SocketResult::kDone) break;
    }
    socket_.Reset();
  }
}

}  // namespace lying_handshake_test
}  // namespace tidepool::testing

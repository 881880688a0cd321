// ControlServerTest: the control server against a loop that the test plays itself: it reads the
// events and pushes the replies.
//
// One thread beside the control server's.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "device/host/host_device.h"
#include "memserver/control/control_server.h"
#include "memserver/control/peer_identity.h"
#include "memserver/control/socket_directory.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/spec/job_spec.h"
#include "shm/messages.h"
#include "shm/socket_path.h"
#include "shm/spec/encode.h"
#include "tests/fakes/real_clock.h"
#include "tests/shm/small_spec.h"

namespace tidepool::memserver {

class ControlServerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLimit = 5 * kNsPerSecond;

  void SetUp() override { Start(ControlOptions{}); }
  void Start(ControlOptions options) {
    std::string pattern = "/tmp/tp-control-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    auto claimed = SocketDirectory::Claim(pattern, RealClock());
    ASSERT_TRUE(claimed.ok()) << claimed.status().Format();
    directory_ = std::move(claimed).value();
    options.socket_dir = pattern;
    auto opened =
        ControlServer::Open(options, {RealClock(), &device_, &events_, &replies_, &snapshots_});
    ASSERT_TRUE(opened.ok()) << opened.status().Format();
    server_ = std::move(opened).value();
    thread_ = std::thread([this] { server_->Run(); });
  }
  void TearDown() override { Stop(); }
  void Stop() {
    if (!thread_.joinable()) return;
    replies_.Push(Stopped{});
    thread_.join();
    server_.reset();
    const std::string path = directory_->path();
    directory_.reset();
    std::filesystem::remove(path);
  }

  sockaddr_un Address() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = shm::DataSocketPath(directory_->path());
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  UniqueFd Connect() {
    auto socket = shm::ConnectSocket(RealClock(), shm::DataSocketPath(directory_->path()), kLimit);
    EXPECT_TRUE(socket.ok()) << socket.status().Format();
    return socket.ok() ? std::move(socket).value() : UniqueFd();
  }
  static void Send(const UniqueFd& socket, const shm::Frame& frame) {
    ASSERT_EQ(shm::SendPacket(socket.get(), shm::EncodeFrame(frame)), shm::SocketResult::kDone);
  }
  static void Greet(const UniqueFd& socket) {
    const auto bytes = shm::Encode(testing::SmallSpec());
    Send(socket, shm::HelloFrame{shm::kOwnProtocols, 0, 1, getpid(), bytes.size(),
                                 shm::Fingerprint(bytes), 0xabc});
    Send(socket, shm::SpecPartFrame{bytes});
  }
  // The next frame, with its descriptors in `fds`; none when the server closes.
  std::optional<shm::Frame> Receive(const UniqueFd& socket) {
    shm::Packet packet;
    for (;;) {
      if (!shm::WaitForSocket(socket.get(), POLLIN, kLimit)) return std::nullopt;
      const auto result = shm::ReceivePacket(socket.get(), shm::kPacketFdsMax, &packet);
      if (result == shm::SocketResult::kWouldBlock) continue;
      if (result != shm::SocketResult::kDone) return std::nullopt;
      fds_ = std::move(packet.fds);
      auto frame = shm::DecodeFrame(packet.bytes);
      return frame.ok() ? std::optional(std::move(frame).value()) : std::nullopt;
    }
  }
  // Why the connection is refused; ok when something else came.
  Status RefusalAt(const UniqueFd& socket) {
    const auto frame = Receive(socket);
    return frame && std::holds_alternative<shm::RefusedFrame>(*frame)
               ? std::get<shm::RefusedFrame>(*frame).why
               : Status();
  }
  // The next event for the loop.
  std::optional<ControlEvent> NextEvent() {
    while (taken_.empty()) {
      pollfd entry{events_.event_fd(), POLLIN, 0};
      if (poll(&entry, 1, static_cast<int>(kLimit / kNsPerMs)) <= 0) return std::nullopt;
      events_.ClearEvent();
      events_.TakeAll(&taken_);
    }
    ControlEvent event = std::move(taken_.front());
    taken_.erase(taken_.begin());
    return event;
  }
  template <typename T>
  T Expect() {
    auto event = NextEvent();
    EXPECT_TRUE(event && std::holds_alternative<T>(*event)) << "another event or none came";
    return event && std::holds_alternative<T>(*event) ? std::get<T>(std::move(*event)) : T{};
  }
  // A session up to Welcome.
  ConnectionId Attach(const UniqueFd& socket) {
    Greet(socket);
    const auto event = Expect<ReserveJob>();
    EXPECT_EQ(event.nonce, 0xabcU);
    EXPECT_EQ(event.process_start, ReadProcessStart(getpid()));
    const ConnectionId id = event.connection;
    replies_.Push(ReserveGranted{
        .connection = id, .job = 1, .session = 9, .rcache_bytes = 8192, .to_zero = {}});
    attached_ = Expect<AttachSession>();
    replies_.Push(Attached{.connection = id, .session = 9, .job = 1});
    auto frame = Receive(socket);
    EXPECT_TRUE(frame && std::holds_alternative<shm::WelcomeFrame>(*frame));
    EXPECT_EQ(fds_.size(), shm::kWelcomeFds);
    return id;
  }

  static void SendResume(const UniqueFd& socket, int fd, uint64_t nonce = 0xabc) {
    const auto bytes =
        shm::EncodeFrame(shm::ResumeFrame{shm::kOwnProtocols, 0, 0x10b, nonce, 8192});
    ASSERT_EQ(shm::SendPacket(socket.get(), bytes, std::array{fd}), shm::SocketResult::kDone);
  }
  // A rank with this memory asks for its session, and the loop grants it.
  ConnectionId GrantResume(const UniqueFd& socket, int fd, uint64_t nonce = 0xabc) {
    SendResume(socket, fd, nonce);
    const auto event = Expect<ResumeSession>();
    EXPECT_EQ(event.nonce, nonce);
    EXPECT_EQ(event.job_nonce, 0x10bU);
    EXPECT_EQ(event.rcache_bytes, 8192U);
    EXPECT_EQ(event.pid, getpid());
    replies_.Push(ReserveGranted{.connection = event.connection,
                                 .job = 1,
                                 .session = 9,
                                 .rcache_bytes = 8192,
                                 .to_zero = {}});
    return event.connection;
  }

  device::HostDevice device_{device::HostDeviceOptions{.clock = RealClock()}};
  EventQueue<ControlEvent> events_;
  EventQueue<ControlReply> replies_;
  EventQueue<std::shared_ptr<const Snapshot>> snapshots_;
  std::unique_ptr<SocketDirectory> directory_;
  std::unique_ptr<ControlServer> server_;
  std::thread thread_;
  std::vector<ControlEvent> taken_;
  std::vector<UniqueFd> fds_;
  AttachSession attached_;
};

}  // namespace tidepool::memserver

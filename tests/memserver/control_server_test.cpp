// The control server against a loop that the test plays itself: it reads the events and pushes the replies.
#include "memserver/jobs/control_server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "device/host_device.h"
#include "memserver/jobs/socket_directory.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/job_spec.h"
#include "shm/messages.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {
namespace {

constexpr int64_t kLimit = 5 * kNsPerSecond;

shm::JobSpec Spec() {
  shm::JobSpec spec;
  spec.name = "job";
  spec.rcache_bytes = 8192;
  spec.parameter_groups = {{1.0F, 0.0F}};
  spec.data_groups = {{0b1}};
  spec.chunks = {{64, 0}};
  spec.parameters = {{"w", {64}, 0, 0, 0, 64}};
  return spec;
}

class ControlServerTest : public testing::Test {
 protected:
  void SetUp() override { Start(ControlOptions{}); }
  void Start(ControlOptions options) {
    std::string pattern = "/tmp/tp-control-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    auto claimed = SocketDirectory::Claim(pattern);
    ASSERT_TRUE(claimed.ok()) << claimed.status().Format();
    directory_ = std::move(claimed).value();
    options.socket_dir = pattern;
    auto opened = ControlServer::Open(options, {&device_, &events_, &replies_, &snapshots_});
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

  UniqueFd Connect() {
    auto socket = shm::ConnectSocket(shm::DataSocketPath(directory_->path()), kLimit);
    EXPECT_TRUE(socket.ok()) << socket.status().Format();
    return socket.ok() ? std::move(socket).value() : UniqueFd();
  }
  static void Send(const UniqueFd& socket, const shm::Frame& frame) {
    ASSERT_EQ(shm::SendPacket(socket.get(), shm::EncodeFrame(frame)), shm::SocketResult::kDone);
  }
  static void Greet(const UniqueFd& socket) {
    const auto bytes = shm::Encode(Spec());
    Send(socket, shm::HelloFrame{shm::kAbiVersion, 0, 0, 1, getpid(), bytes.size(), shm::Fingerprint(bytes)});
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
    const ConnectionId id = Expect<ReserveJob>().connection;
    replies_.Push(ReserveGranted{.connection = id, .job = 1, .session = 9, .rcache_bytes = 8192, .to_zero = {}});
    attached_ = Expect<AttachSession>();
    replies_.Push(Attached{.connection = id, .session = 9, .job = 1});
    auto frame = Receive(socket);
    EXPECT_TRUE(frame && std::holds_alternative<shm::WelcomeFrame>(*frame));
    EXPECT_EQ(fds_.size(), shm::kWelcomeFds);
    return id;
  }

  device::HostDevice device_{device::HostDeviceOptions{}};
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

TEST_F(ControlServerTest, ASessionIsReservedPreparedAttachedAndLeft) {
  const UniqueFd socket = Connect();
  const ConnectionId id = Attach(socket);
  ASSERT_NE(attached_.port, nullptr);
  ASSERT_NE(attached_.rcache, nullptr);
  EXPECT_EQ(attached_.rcache->bytes(), 8192U);
  Send(socket, shm::GoodbyeFrame{});
  EXPECT_EQ(Expect<Goodbye>().connection, id);
  replies_.Push(SessionOver{id, Status()});
  EXPECT_FALSE(Receive(socket).has_value()) << "the closed socket is the answer";
}

TEST_F(ControlServerTest, PoolMemoryIsZeroedBeforeTheSessionIsAttached) {
  std::vector<std::byte> pool(200'000, std::byte{0x5a});
  const UniqueFd socket = Connect();
  Greet(socket);
  const ConnectionId id = Expect<ReserveJob>().connection;
  replies_.Push(ReserveGranted{.connection = id, .session = 1, .rcache_bytes = 8192, .to_zero = {{pool.data() + 1, pool.size() - 2}}});
  Expect<AttachSession>();
  EXPECT_EQ(pool.front(), std::byte{0x5a});
  EXPECT_EQ(pool.back(), std::byte{0x5a});
  for (size_t i = 1; i + 1 < pool.size(); ++i) ASSERT_EQ(pool[i], std::byte{0});
}

TEST_F(ControlServerTest, ARefusalReachesTheTrainerWithAllItsParts) {
  const UniqueFd socket = Connect();
  Greet(socket);
  const ConnectionId id = Expect<ReserveJob>().connection;
  replies_.Push(Refused{id, Status(ErrorId::kPoolFull, "no room").Why("of the numbers").Fix("more")});
  auto frame = Receive(socket);
  ASSERT_TRUE(frame && std::holds_alternative<shm::RefusedFrame>(*frame));
  const Status& why = std::get<shm::RefusedFrame>(*frame).why;
  EXPECT_EQ(why.id(), ErrorId::kPoolFull);
  EXPECT_EQ(why.fix(), "more");
  EXPECT_FALSE(Receive(socket).has_value());
  EXPECT_EQ(Expect<ConnectionLost>().connection, id);
}

TEST_F(ControlServerTest, MemoryThatCannotBeMadeIsARefusal) {
  const UniqueFd socket = Connect();
  Greet(socket);
  const ConnectionId id = Expect<ReserveJob>().connection;
  replies_.Push(ReserveGranted{.connection = id, .session = 1, .rcache_bytes = uint64_t{1} << 55, .to_zero = {}});
  auto frame = Receive(socket);
  ASSERT_TRUE(frame && std::holds_alternative<shm::RefusedFrame>(*frame));
  EXPECT_EQ(std::get<shm::RefusedFrame>(*frame).why.id(), ErrorId::kHostMemoryShort);
  EXPECT_EQ(Expect<ConnectionLost>().connection, id);
}

TEST_F(ControlServerTest, EveryConnectionThatEndsIsToldToTheLoopOnce) {
  Connect().Reset();
  EXPECT_EQ(Expect<ConnectionLost>().connection, 1U);
  UniqueFd socket = Connect();
  const ConnectionId id = Attach(socket);
  socket.Reset();
  EXPECT_EQ(Expect<ConnectionLost>().connection, id);
}

TEST_F(ControlServerTest, ALossDuringPreparationIsToldOnlyWhenTheMemoryIsNoLongerTouched) {
  std::vector<std::byte> pool(300'000'000);
  UniqueFd socket = Connect();
  Greet(socket);
  const ConnectionId id = Expect<ReserveJob>().connection;
  std::memset(pool.data(), 1, pool.size());
  replies_.Push(ReserveGranted{.connection = id, .session = 1, .rcache_bytes = 8192, .to_zero = {pool}});
  socket.Reset();
  Expect<ConnectionLost>();
  // Either the loss came before the preparation began, and nothing was touched, or all of it was zeroed.
  EXPECT_EQ(pool.front(), pool.back());
}

TEST_F(ControlServerTest, TheEndOfASessionAndTheDeathOfAPeerReachTheTrainer) {
  const UniqueFd socket = Connect();
  const ConnectionId id = Attach(socket);
  replies_.Push(PeerGone{id, 3});
  auto frame = Receive(socket);
  ASSERT_TRUE(frame && std::holds_alternative<shm::PeerLostFrame>(*frame));
  EXPECT_EQ(std::get<shm::PeerLostFrame>(*frame).rank, 3U);
  replies_.Push(SessionOver{id, Status(ErrorId::kProtocolViolation, "because")});
  frame = Receive(socket);
  ASSERT_TRUE(frame && std::holds_alternative<shm::EndedFrame>(*frame));
  EXPECT_EQ(std::get<shm::EndedFrame>(*frame).why.what(), "because");
  EXPECT_FALSE(Receive(socket).has_value());
  EXPECT_EQ(Expect<ConnectionLost>().connection, id);
}

TEST_F(ControlServerTest, SnapshotsOfTheLoopAreHandedOn) {
  Snapshot snapshot;
  snapshot.workers = 7;
  replies_.Push(SnapshotReady{std::make_shared<const Snapshot>(snapshot)});
  pollfd entry{snapshots_.event_fd(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, static_cast<int>(kLimit / kNsPerMs)), 1);
  std::vector<std::shared_ptr<const Snapshot>> taken;
  ASSERT_TRUE(snapshots_.TakeAll(&taken));
  EXPECT_EQ(taken[0]->workers, 7U);
}

TEST_F(ControlServerTest, RepliesForConnectionsThatAreGoneAreHarmless) {
  for (ConnectionId id : {0, 1, 77}) {
    replies_.Push(ReserveGranted{.connection = id, .rcache_bytes = 8192, .to_zero = {}});
    replies_.Push(Attached{.connection = id});
    replies_.Push(Refused{id, Status(ErrorId::kPoolFull, "x")});
    replies_.Push(SessionOver{id, Status(ErrorId::kPoolFull, "x")});
    replies_.Push(PeerGone{id, 0});
    replies_.Push(SaveDone{id, Status()});
  }
  Attach(Connect());
}

class SmallControlServerTest : public ControlServerTest {
 protected:
  void SetUp() override { Start({.socket_dir = "", .connections_max = 2, .greeting_timeout_ns = 100 * kNsPerMs}); }
};

TEST_F(SmallControlServerTest, AGreetingThatIsNotFinishedInTimeLosesItsConnection) {
  const UniqueFd silent = Connect();
  const UniqueFd slow = Connect();
  const auto bytes = shm::Encode(Spec());
  Send(slow, shm::HelloFrame{shm::kAbiVersion, 0, 0, 1, getpid(), bytes.size(), shm::Fingerprint(bytes)});
  for (const UniqueFd* socket : {&silent, &slow}) {
    auto frame = Receive(*socket);
    ASSERT_TRUE(frame && std::holds_alternative<shm::RefusedFrame>(*frame));
    EXPECT_EQ(std::get<shm::RefusedFrame>(*frame).why.id(), ErrorId::kHandshakeBad);
    EXPECT_FALSE(Receive(*socket).has_value());
  }
}

TEST_F(SmallControlServerTest, ASessionThatIsOpenIsNotUnderTheGreetingLimit) {
  const UniqueFd socket = Connect();
  Attach(socket);
  EXPECT_FALSE(shm::WaitForSocket(socket.get(), POLLIN, 300 * kNsPerMs)) << "nothing may come, above all no end";
}

TEST_F(SmallControlServerTest, MoreConnectionsThanAllowedAreRefusedByName) {
  const UniqueFd first = Connect(), second = Connect();
  Greet(first);
  Greet(second);
  Expect<ReserveJob>();
  Expect<ReserveJob>();
  const UniqueFd third = Connect();
  auto frame = Receive(third);
  ASSERT_TRUE(frame && std::holds_alternative<shm::RefusedFrame>(*frame));
  EXPECT_EQ(std::get<shm::RefusedFrame>(*frame).why.id(), ErrorId::kTooManySessions);
}

TEST_F(ControlServerTest, WithoutAnyDescriptorLeftAClientIsStillRefusedByName) {
  UniqueFd client(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<UniqueFd> filler;
  rlimit low = limit;
  low.rlim_cur = 200;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  for (;;) {
    UniqueFd fd(dup(STDIN_FILENO));
    if (!fd.valid()) break;
    filler.push_back(std::move(fd));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = shm::DataSocketPath(directory_->path());
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const auto frame = Receive(client);
  filler.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_TRUE(frame && std::holds_alternative<shm::RefusedFrame>(*frame));
  EXPECT_EQ(std::get<shm::RefusedFrame>(*frame).why.id(), ErrorId::kTooManySessions);
  Attach(Connect());  // and it has recovered
}

}  // namespace
}  // namespace tidepool::memserver

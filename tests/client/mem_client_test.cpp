// MemClient against a server that the test plays: answers in the wrong order, silence, an early
// end, a death.
#include "client/mem_client.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/port.h"
#include "shm/socket_path.h"
#include "tests/shm/small_spec.h"

namespace tidepool::client {
namespace mem_client_test {

constexpr int64_t kLimit = 5 * kNsPerSecond;

// The server's end of one session. The test's thread plays the server after Connect has returned.
class MemClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/tp-client-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    auto listening = shm::ListenSocket(shm::DataSocketPath(directory_));
    ASSERT_TRUE(listening.ok());
    listening_ = std::move(listening).value();
    options_.clock = &clock_;
    options_.socket_dir = directory_;
    options_.wait_timeout_ns = kLimit;
    port_ = std::move(shm::ServerPort::Create(3)).value();
    rcache_ = std::move(shm::Segment::Create("rcache", 8192, shm::PeerAccess::kReadWrite)).value();
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Takes the connection and the greeting, then answers with `answer` and its descriptors.
  void Serve(const shm::Frame& answer, const std::vector<int>& fds) {
    ASSERT_TRUE(shm::WaitForSocket(listening_.get(), POLLIN, kLimit));
    socket_ = UniqueFd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(NextFrame().has_value());  // Hello, SpecPart
    ASSERT_EQ(shm::SendPacket(socket_.get(), shm::EncodeFrame(answer), fds),
              shm::SocketResult::kDone);
  }
  std::optional<shm::Frame> NextFrame() {
    shm::Packet packet;
    if (!shm::WaitForSocket(socket_.get(), POLLIN, kLimit)) return std::nullopt;
    if (shm::ReceivePacket(socket_.get(), 1, &packet) != shm::SocketResult::kDone)
      return std::nullopt;
    auto frame = shm::DecodeFrame(packet.bytes);
    return frame.ok() ? std::optional(std::move(frame).value()) : std::nullopt;
  }
  std::vector<int> SessionFds() const {
    return {port_->submission_fd(), port_->completion_fd(), rcache_->fd(), port_->doorbell_fd()};
  }
  static shm::WelcomeFrame Welcome() {
    shm::WelcomeFrame welcome;
    welcome.protocol = shm::kAbiVersion;
    welcome.session = 3;
    welcome.rcache_bytes = 8192;
    welcome.sealed_version = 12;
    return welcome;
  }
  // What Connect returns when the server gives this answer.
  Result<std::unique_ptr<MemClient>> ConnectWith(const shm::Frame& answer,
                                                 const std::vector<int>& fds) {
    std::thread server([&] { Serve(answer, fds); });
    auto client = MemClient::Connect(options_, testing::SmallSpec(), 0);
    server.join();
    return client;
  }
  void Connect() {
    auto client = ConnectWith(Welcome(), SessionFds());
    ASSERT_TRUE(client.ok()) << client.status().Format();
    client_ = std::move(client).value();
  }
  void Answer(uint64_t counter, ErrorId error = ErrorId::kNone, Version version = 0) {
    shm::Completion completion{};
    completion.counter = counter;
    completion.error = static_cast<uint32_t>(error);
    completion.version = version;
    ASSERT_TRUE(port_->Push(completion));
    port_->Wake();
  }
  Ticket Fetch(Version version = 12) {
    auto ticket = client_->StartFetch({0, 0, 64, 0}, version);
    EXPECT_TRUE(ticket.ok()) << ticket.status().Format();
    return ticket.ok() ? ticket.value() : 0;
  }

  SteadyClock clock_;
  std::string directory_;
  ClientOptions options_;
  UniqueFd listening_, socket_;
  std::unique_ptr<shm::ServerPort> port_;
  std::unique_ptr<shm::Segment> rcache_;
  std::unique_ptr<MemClient> client_;
};

TEST(ClientOptionsTest, AClientWithoutAClockIsRefusedByName) {
  ClientOptions options;
  options.socket_dir = "/nowhere";
  const auto client = MemClient::Connect(options, testing::SmallSpec(), 0);
  EXPECT_EQ(client.status().id(), ErrorId::kUsageError);
}

TEST_F(MemClientTest, TheAttachmentIsWhatTheServerGranted) {
  Connect();
  const Attachment& attachment = client_->attachment();
  EXPECT_EQ(attachment.session, 3U);
  EXPECT_EQ(attachment.sealed_version, 12U);
  EXPECT_EQ(attachment.rcache_bytes, 8192U);
  attachment.rcache[8191] = std::byte{9};
  EXPECT_EQ(rcache_->data()[8191], std::byte{9}) << "both map the same memory";
}

TEST_F(MemClientTest, RequestsCarryWhatTheCallerSaid) {
  Connect();
  Fetch(7);
  ASSERT_TRUE(client_->StartSubmitGradient({0, 16, 32, 4096}, 7, 2).ok());
  ASSERT_TRUE(client_->StartEndStep({.version = 7, .learning_rate = 0.5F, .data_cursor = 99}).ok());
  shm::Request request{};
  ASSERT_EQ(port_->Pop(&request), shm::PopResult::kItem);
  EXPECT_EQ(request.counter, 1U);
  EXPECT_EQ(request.op, static_cast<uint32_t>(shm::Op::kFetch));
  EXPECT_EQ(request.version, 7U);
  ASSERT_EQ(port_->Pop(&request), shm::PopResult::kItem);
  EXPECT_EQ(request.counter, 2U);
  EXPECT_EQ(request.element_begin, 16U);
  EXPECT_EQ(request.element_count, 32U);
  EXPECT_EQ(request.rcache_offset, 4096U);
  EXPECT_EQ(request.micro_batch, 2U);
  ASSERT_EQ(port_->Pop(&request), shm::PopResult::kItem);
  EXPECT_EQ(shm::AsEndStep(request).learning_rate, 0.5F);
  EXPECT_EQ(shm::AsEndStep(request).data_cursor, 99U);
}

TEST_F(MemClientTest, OutcomesMayComeAndBeTakenInAnyOrder) {
  Connect();
  const Ticket a = Fetch(), b = Fetch(), c = Fetch();
  EXPECT_FALSE(client_->Test(a));
  Answer(c, ErrorId::kNone, 33);
  Answer(a, ErrorId::kNone, 11);
  EXPECT_TRUE(client_->Test(a));
  EXPECT_FALSE(client_->Test(b));
  EXPECT_EQ(client_->Wait(a).value().version, 11U);
  Answer(b, ErrorId::kNone, 22);
  EXPECT_EQ(client_->Wait(b).value().version, 22U);
  EXPECT_EQ(client_->Wait(c).value().version, 33U);
}

TEST_F(MemClientTest, AnErrorOfOneRequestNamesItAndLeavesTheSessionAlive) {
  Connect();
  const Ticket a = Fetch(), b = Fetch();
  Answer(a, ErrorId::kProtocolViolation);
  Answer(b);
  const Status error = client_->Wait(a).status();
  EXPECT_EQ(error.id(), ErrorId::kProtocolViolation);
  EXPECT_NE(error.Format().find("fetch chunk 0"), std::string::npos) << error.Format();
  EXPECT_TRUE(client_->Wait(b).ok());
}

TEST_F(MemClientTest, AWaitWithoutAnAnswerEndsAtItsLimit) {
  options_.wait_timeout_ns = 50 * kNsPerMs;
  Connect();
  const Status error = client_->Wait(Fetch()).status();
  EXPECT_EQ(error.id(), ErrorId::kWaitTimeout);
  EXPECT_NE(error.what().find("no answer to 'fetch chunk 0' within 50"), std::string::npos)
      << error.Format();
  EXPECT_EQ(error.exit_code(), kExitTimeout);
}

TEST_F(MemClientTest, ADeadServerIsNoticedWhileWaitingAndStaysDead) {
  Connect();
  const Ticket ticket = Fetch();
  std::thread server([this] {
    SteadyClock().SleepNs(50 * kNsPerMs);
    socket_.Reset();
  });
  const SteadyClock clock;
  const int64_t start = clock.NowNs();
  EXPECT_EQ(client_->Wait(ticket).status().id(), ErrorId::kServerGone);
  EXPECT_LT(clock.NowNs() - start, kLimit);
  server.join();
  EXPECT_EQ(client_->StartFetch({0, 0, 64, 0}, 12).status().id(), ErrorId::kServerGone);
  EXPECT_EQ(client_->DeclareSchedule({}).id(), ErrorId::kServerGone);
  EXPECT_EQ(client_->Detach().id(), ErrorId::kServerGone);
}

TEST_F(MemClientTest, TestingNoticesADeadServerToo) {
  Connect();
  const Ticket ticket = Fetch();
  EXPECT_FALSE(client_->Test(ticket));
  socket_.Reset();
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + kLimit;
  while (!client_->Test(ticket) && clock.NowNs() < limit) clock.SleepNs(kNsPerMs);
  EXPECT_LT(clock.NowNs(), limit);
  EXPECT_EQ(client_->Wait(ticket).status().id(), ErrorId::kServerGone);
}

TEST_F(MemClientTest, TheReasonOfAnEndComesFromItsFrame) {
  Connect();
  const Ticket ticket = Fetch();
  port_->End(ErrorId::kProtocolViolation);
  shm::SendPacket(
      socket_.get(),
      shm::EncodeFrame(shm::EndedFrame{Status(ErrorId::kProtocolViolation, "the very reason")}));
  const Status error = client_->Wait(ticket).status();
  EXPECT_EQ(error.id(), ErrorId::kProtocolViolation);
  EXPECT_EQ(error.what(), "the very reason");
}

TEST_F(MemClientTest, AnEndMarkWithoutAFrameIsEnough) {
  Connect();
  const Ticket ticket = Fetch();
  port_->End(ErrorId::kProtocolViolation);
  EXPECT_EQ(client_->Wait(ticket).status().id(), ErrorId::kProtocolViolation);
}

TEST_F(MemClientTest, ALostPeerEndsEveryWait) {
  Connect();
  const Ticket ticket = Fetch();
  shm::SendPacket(socket_.get(), shm::EncodeFrame(shm::PeerLostFrame{3}));
  const Status error = client_->Wait(ticket).status();
  EXPECT_EQ(error.id(), ErrorId::kPeerLost);
  EXPECT_NE(error.what().find("rank 3"), std::string::npos) << error.Format();
}

TEST_F(MemClientTest, AnswersThatCameBeforeTheEndAreStillTaken) {
  Connect();
  const Ticket a = Fetch(), b = Fetch();
  Answer(a);
  socket_.Reset();
  EXPECT_TRUE(client_->Wait(a).ok());
  EXPECT_EQ(client_->Wait(b).status().id(), ErrorId::kServerGone);
}

TEST_F(MemClientTest, AnAnswerToNothingEndsTheSession) {
  Connect();
  const Ticket ticket = Fetch();
  Answer(777);
  EXPECT_EQ(client_->Wait(ticket).status().id(), ErrorId::kProtocolViolation);
}

TEST_F(MemClientTest, ManyRequestsInFlightPassThroughTheRing) {
  Connect();
  std::thread server([this] {
    shm::Request request{};
    for (uint64_t served = 0; served < 5000;) {
      if (port_->Pop(&request) != shm::PopResult::kItem) continue;
      Answer(request.counter);
      ++served;
    }
  });
  std::vector<Ticket> tickets;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 500; ++i) tickets.push_back(Fetch());
    for (const Ticket ticket : tickets) ASSERT_TRUE(client_->Wait(ticket).ok());
    tickets.clear();
  }
  server.join();
}

TEST_F(MemClientTest, ALongScheduleArrivesInParts) {
  Connect();
  std::vector<ChunkId> order(40'000);
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<ChunkId>(i % 7);
  ASSERT_TRUE(client_->DeclareSchedule(order).ok());
  std::vector<ChunkId> received;
  while (received.size() < order.size()) {
    auto frame = NextFrame();
    ASSERT_TRUE(frame && std::holds_alternative<shm::SchedulePartFrame>(*frame));
    const auto& part = std::get<shm::SchedulePartFrame>(*frame);
    EXPECT_EQ(part.total, order.size());
    received.insert(received.end(), part.order.begin(), part.order.end());
  }
  EXPECT_EQ(received, order);
}

TEST_F(MemClientTest, ASaveWaitsForItsResult) {
  Connect();
  const UniqueFd directory(open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC));
  std::thread server([this] {
    auto frame = NextFrame();
    EXPECT_TRUE(frame && std::holds_alternative<shm::SaveFrame>(*frame));
    shm::SendPacket(
        socket_.get(),
        shm::EncodeFrame(shm::SaveDoneFrame{Status(ErrorId::kSaveFailed, "disk full")}));
  });
  const Status status = client_->SaveWeights(directory.get(), "x.safetensors", 12);
  server.join();
  EXPECT_EQ(status.id(), ErrorId::kSaveFailed);
  EXPECT_EQ(status.what(), "disk full");
  EXPECT_EQ(client_->SaveWeights(directory.get(), "../x", 12).id(), ErrorId::kSaveFailed);
}

// A reader may have everything, or have died, a moment before the server says that it has ended.
TEST_F(MemClientTest, AStreamWaitsUntilTheOneBeforeHasEnded) {
  Connect();
  const auto memory = shm::Segment::Create("states", 4096, shm::PeerAccess::kReadWrite).value();
  const auto give = [&] {
    auto frame = NextFrame();
    EXPECT_TRUE(frame && std::holds_alternative<shm::StreamStatesFrame>(*frame));
    const std::vector<int> fds{memory->fd()};
    shm::SendPacket(socket_.get(), shm::EncodeFrame(shm::StatesStreamFrame{}), fds);
  };

  std::thread server(give);
  EXPECT_TRUE(client_->StreamStates(12).ok());
  EXPECT_FALSE(client_->StreamEnd().has_value());
  server.join();
  server = std::thread([&] {
    // Nothing is asked for before the first stream has ended.
    EXPECT_FALSE(shm::WaitForSocket(socket_.get(), POLLIN, 50 * kNsPerMs));
    shm::SendPacket(
        socket_.get(),
        shm::EncodeFrame(shm::SaveDoneFrame{Status(ErrorId::kSaveFailed, "its reader is gone")}));
    give();
  });

  const auto second = client_->StreamStates(12);
  EXPECT_TRUE(second.ok()) << second.status().Format();
  server.join();
}

TEST_F(MemClientTest, DetachReturnsWhenTheServerHasClosed) {
  Connect();
  std::thread server([this] {
    auto frame = NextFrame();
    EXPECT_TRUE(frame && std::holds_alternative<shm::GoodbyeFrame>(*frame));
    socket_.Reset();
  });
  EXPECT_TRUE(client_->Detach().ok());
  server.join();
  EXPECT_EQ(client_->Detach().id(), ErrorId::kSessionEnded);
}

TEST_F(MemClientTest, ARefusalIsReturnedAsItCame) {
  const auto client =
      ConnectWith(shm::RefusedFrame{Status(ErrorId::kPoolFull, "no room").Fix("more")}, {});
  EXPECT_EQ(client.status().id(), ErrorId::kPoolFull);
  EXPECT_EQ(client.status().fix(), "more");
}

TEST_F(MemClientTest, ARankThatWaitsForRoomIsToldItsPlaceAndGoesOnWhenItsTurnHasCome) {
  std::vector<std::string> told;
  options_.queue_timeout_ns = kNsPerSecond;
  options_.on_wait = [&told](const std::string& line) { told.push_back(line); };
  std::thread server([this] {
    Serve(shm::QueuedFrame{2, Status(ErrorId::kPoolFull, "no room").Why("others hold it")}, {});
    shm::SendPacket(socket_.get(), shm::EncodeFrame(shm::QueuedFrame{1, Status()}), {});
    SteadyClock().SleepNs(options_.queue_timeout_ns + 200 * kNsPerMs);  // its memory is prepared
    shm::SendPacket(socket_.get(), shm::EncodeFrame(Welcome()), SessionFds());
  });
  const auto client = MemClient::Connect(options_, testing::SmallSpec(), 0);
  server.join();
  EXPECT_TRUE(client.ok()) << client.status().Format();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].find("place 2 of the queue: no room (others hold it)"), std::string::npos)
      << told[0];
}

TEST_F(MemClientTest, WaitingForRoomEnds) {
  const shm::QueuedFrame queued{1, Status(ErrorId::kPoolFull, "no room")};
  EXPECT_EQ(ConnectWith(queued, {}).status().id(), ErrorId::kHandshakeBad)
      << "it had not offered to wait";
  options_.queue_timeout_ns = 10 * kNsPerMs;
  const Status in_vain = ConnectWith(queued, {}).status();
  EXPECT_EQ(in_vain.id(), ErrorId::kWaitTimeout);
  EXPECT_NE(in_vain.what().find("no room"), std::string::npos) << in_vain.what();
  options_.queue_timeout_ns = kLimit;
  options_.give_up = [] { return true; };
  EXPECT_EQ(ConnectWith(queued, {}).status().id(), ErrorId::kSessionEnded);
}

TEST_F(MemClientTest, AWelcomeThatDoesNotFitIsRefused) {
  shm::WelcomeFrame small = Welcome();
  small.rcache_bytes = 4096;
  EXPECT_EQ(ConnectWith(small, SessionFds()).status().id(), ErrorId::kHandshakeBad);
  EXPECT_EQ(ConnectWith(Welcome(), {0}).status().id(), ErrorId::kHandshakeBad);
  auto fds = SessionFds();
  std::swap(fds[0], fds[2]);
  EXPECT_EQ(ConnectWith(Welcome(), fds).status().id(), ErrorId::kHandshakeBad);
  EXPECT_EQ(ConnectWith(shm::GoodbyeFrame{}, {}).status().id(), ErrorId::kHandshakeBad);
}

TEST_F(MemClientTest, AProtocolThatWasNotOfferedIsRefused) {
  shm::WelcomeFrame other = Welcome();
  other.protocol = shm::kOwnProtocols.highest + 1;
  EXPECT_EQ(ConnectWith(other, SessionFds()).status().id(), ErrorId::kAbiMismatch);
  port_ = std::move(shm::ServerPort::Create(3, shm::kOwnProtocols.highest + 1)).value();
  EXPECT_EQ(ConnectWith(Welcome(), SessionFds()).status().id(), ErrorId::kAbiMismatch)
      << "rings of another version than the welcome's";
}

TEST_F(MemClientTest, ABrokenJobIsRefusedBeforeAnythingIsSent) {
  shm::JobSpec spec = testing::SmallSpec();
  spec.chunks[0].elements = 7;
  EXPECT_EQ(MemClient::Connect(options_, spec, 0).status().id(), ErrorId::kJobSpecBad);
}

TEST_F(MemClientTest, WithoutAServerItSaysWhereItLooked) {
  listening_.Reset();
  std::filesystem::remove(shm::DataSocketPath(directory_));
  options_.connect_timeout_ns = 50 * kNsPerMs;
  const Status status = MemClient::Connect(options_, testing::SmallSpec(), 0).status();
  EXPECT_EQ(status.id(), ErrorId::kNoServer);
  EXPECT_NE(status.Format().find(directory_), std::string::npos) << status.Format();
}

}  // namespace mem_client_test
}  // namespace tidepool::client

#include "memserver/control/control_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/point.h"
#include "device/host/host_device.h"
#include "memserver/control/bounds/accept_pace.h"
#include "memserver/control/peer_identity.h"
#include "memserver/control/socket_directory.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/spec/job_spec.h"
#include "shm/messages.h"
#include "shm/socket_path.h"
#include "shm/spec/encode.h"
#include "tests/memserver/control/control_fixture.h"

namespace tidepool::memserver {
namespace control_server_test {

size_t OpenRcaches() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    count += std::filesystem::read_symlink(entry.path(), error).string().find("tidepool-device") !=
                     std::string::npos
                 ? 1
                 : 0;
  }
  return count;
}

TEST_F(ControlServerTest, ASessionIsReservedPreparedAttachedAndLeft) {
  const UniqueFd socket = Connect();
  const ConnectionId id = Attach(socket);
  ASSERT_NE(attached_.port, nullptr);
  ASSERT_NE(attached_.rcache, nullptr);
  EXPECT_EQ(attached_.rcache->bytes(), 8192U);
  Send(socket, shm::GoodbyeFrame{});
  EXPECT_EQ(Expect<Goodbye>().connection, id);
  replies_.Push(SessionOver{id, Status()});
  const auto frame = Receive(socket);
  ASSERT_TRUE(frame && std::holds_alternative<shm::EndedFrame>(*frame))
      << "a server that dies says nothing";
  EXPECT_TRUE(std::get<shm::EndedFrame>(*frame).why.ok());
  EXPECT_FALSE(Receive(socket).has_value());
}

TEST_F(ControlServerTest, ARankComesBackWithItsMemoryAndGetsNewRings) {
  UniqueFd memory;
  const auto mine = device_.CreateExportable(8192, &memory);
  ASSERT_TRUE(mine.ok());
  mine.value()->data()[8191] = std::byte{0x5a};
  const UniqueFd socket = Connect();
  const ConnectionId id = GrantResume(socket, memory.get());
  attached_ = Expect<AttachSession>();
  ASSERT_NE(attached_.port, nullptr);
  ASSERT_NE(attached_.rcache, nullptr);
  EXPECT_EQ(attached_.rcache->bytes(), 8192U);
  EXPECT_EQ(attached_.rcache->data()[8191], std::byte{0x5a}) << "nothing was zeroed";
  attached_.rcache->data()[0] = std::byte{1};
  EXPECT_EQ(mine.value()->data()[0], std::byte{1}) << "the same memory";
  replies_.Push(Attached{.connection = id, .session = 9, .job = 1});
  auto frame = Receive(socket);
  ASSERT_TRUE(frame && std::holds_alternative<shm::ResumedFrame>(*frame));
  EXPECT_EQ(std::get<shm::ResumedFrame>(*frame).session, 9U);
  ASSERT_EQ(fds_.size(), shm::kResumedFds);
  const auto port = shm::ClientPort::Map(std::move(fds_[shm::kResumedSubmission]),
                                         std::move(fds_[shm::kResumedCompletion]),
                                         std::move(fds_[shm::kResumedDoorbell]));
  EXPECT_TRUE(port.ok()) << port.status().Format();
  Send(socket, shm::GoodbyeFrame{});
  EXPECT_EQ(Expect<Goodbye>().connection, id);
}

// It once kept the last one until another session was prepared: rCache memory of a rank that was
// gone.
TEST_F(ControlServerTest, TheDescriptorOfAReturnedRcacheIsClosedWhenItIsMapped) {
  UniqueFd memory;
  const auto mine = device_.CreateExportable(8192, &memory);
  ASSERT_TRUE(mine.ok());
  const UniqueFd socket = Connect();
  GrantResume(socket, memory.get());
  attached_ = Expect<AttachSession>();
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + 10 * kNsPerSecond;
  while (OpenRcaches() > 1 && clock.NowNs() < limit) clock.SleepNs(kNsPerMs);
  EXPECT_EQ(OpenRcaches(), 1U) << "the rank's own";
}

TEST_F(ControlServerTest, OnlyMemoryThatAMemserverMadeIsTakenFromARank) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const auto memfd = [](off_t bytes, int seals) {
    UniqueFd fd(memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  };
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const UniqueFd unsealed = memfd(8192, 0), small = memfd(4096, kSeals),
                 sparse = memfd(8192, kSeals);
  for (const int fd : {writer.get(), file.get()}) {
    const UniqueFd socket = Connect();
    SendResume(socket, fd);
    const Status why = RefusalAt(socket);
    EXPECT_EQ(why.id(), ErrorId::kHandshakeBad);
    EXPECT_NE(why.what().find("not a memfd"), std::string::npos) << why.Format();
    Expect<ConnectionLost>();
  }
  const struct {
    int fd;
    const char* reason;
  } cases[] = {{unsealed.get(), "not sealed"},
               {small.get(), "4096 bytes, 8192 are needed"},
               {sparse.get(), "0 of its 8192 bytes are present"}};
  for (const auto& [fd, reason] : cases) {
    const UniqueFd socket = Connect();
    const ConnectionId id = GrantResume(socket, fd);
    const Status why = RefusalAt(socket);
    EXPECT_EQ(why.id(), ErrorId::kHandshakeBad);
    EXPECT_NE(why.what().find(reason), std::string::npos) << why.Format();
    EXPECT_EQ(Expect<ConnectionLost>().connection, id) << "and the loop is told";
  }
}

TEST_F(ControlServerTest, ARankThatMayNotComeBackHearsWhy) {
  const UniqueFd socket = Connect(), zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  SendResume(socket, zero.get());
  const ConnectionId id = Expect<ResumeSession>().connection;
  replies_.Push(Refused{id, Status(ErrorId::kStatesLost, "no such job")});
  EXPECT_EQ(RefusalAt(socket).id(), ErrorId::kStatesLost);
  EXPECT_EQ(Expect<ConnectionLost>().connection, id);
}

TEST_F(ControlServerTest, AResumeWithoutItsDescriptorIsRefused) {
  const UniqueFd socket = Connect();
  Send(socket, shm::ResumeFrame{shm::kOwnProtocols, 0, 0x10b, 0xabc, 8192});
  EXPECT_EQ(RefusalAt(socket).id(), ErrorId::kHandshakeBad);
  Expect<ConnectionLost>();
}

// Children that do nothing; every one is killed at the end.
class ChildrenTest : public ControlServerTest {
 protected:
  void TearDown() override {
    while (!children_.empty()) Kill(children_.back());
    ControlServerTest::TearDown();
  }
  // Calls `first` in the child, which may make system calls alone.
  template <typename First>
  pid_t Child(First first) {
    const pid_t pid = fork();
    if (pid == 0) {
      first();
      for (;;) pause();
    }
    children_.push_back(pid);
    return pid;
  }
  void Kill(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    std::erase(children_, pid);
  }
  std::vector<pid_t> children_;
};

class AwaitedRanksTest : public ChildrenTest {
 protected:
  pid_t Child() {
    return ChildrenTest::Child([] {});
  }
};

TEST_F(AwaitedRanksTest, TheEndOfAnAwaitedProcessIsToldToTheLoop) {
  const pid_t first = Child(), second = Child();
  replies_.Push(AwaitRank{
      .job = 4, .rank = 2, .nonce = 11, .pid = first, .process_start = ReadProcessStart(first)});
  replies_.Push(AwaitRank{
      .job = 4, .rank = 3, .nonce = 12, .pid = second, .process_start = ReadProcessStart(second)});
  replies_.Push(AwaitRank{.job = 4, .rank = 5, .nonce = 13, .pid = 0, .process_start = 0});
  Kill(second);
  auto lost = Expect<AwaitedRankLost>();
  EXPECT_EQ(lost.job, 4U);
  EXPECT_EQ(lost.rank, 3U);
  EXPECT_EQ(lost.nonce, 12U);
  Kill(first);
  EXPECT_EQ(Expect<AwaitedRankLost>().rank, 2U);
}

TEST_F(AwaitedRanksTest, ARankWhoseProcessIsGoneOrAnotherOneNowIsLostAtOnce) {
  const pid_t child = Child();
  const uint64_t start = ReadProcessStart(child);
  replies_.Push(
      AwaitRank{.job = 4, .rank = 2, .nonce = 11, .pid = child, .process_start = start + 1});
  EXPECT_EQ(Expect<AwaitedRankLost>().rank, 2U);
  Kill(child);
  replies_.Push(AwaitRank{.job = 4, .rank = 3, .nonce = 12, .pid = child, .process_start = start});
  EXPECT_EQ(Expect<AwaitedRankLost>().rank, 3U);
}

TEST_F(AwaitedRanksTest, ARankThatIsBackIsNoLongerWatched) {
  const pid_t back = Child(), away = Child();
  replies_.Push(AwaitRank{
      .job = 1, .rank = 0, .nonce = 0xabc, .pid = back, .process_start = ReadProcessStart(back)});
  replies_.Push(AwaitRank{
      .job = 1, .rank = 1, .nonce = 0xabd, .pid = away, .process_start = ReadProcessStart(away)});
  UniqueFd memory;
  ASSERT_TRUE(device_.CreateExportable(8192, &memory).ok());
  const UniqueFd socket = Connect();
  const ConnectionId id = GrantResume(socket, memory.get());
  Expect<AttachSession>();
  replies_.Push(Attached{.connection = id, .session = 9, .job = 1});
  ASSERT_TRUE(Receive(socket).has_value());
  Kill(back);
  Kill(away);
  EXPECT_EQ(Expect<AwaitedRankLost>().rank, 1U);
}

TEST_F(ControlServerTest, PoolMemoryIsZeroedBeforeTheSessionIsAttached) {
  std::vector<std::byte> pool(200'000, std::byte{0x5a});
  const UniqueFd socket = Connect();
  Greet(socket);
  const ConnectionId id = Expect<ReserveJob>().connection;
  replies_.Push(ReserveGranted{.connection = id,
                               .session = 1,
                               .rcache_bytes = 8192,
                               .to_zero = {{pool.data() + 1, pool.size() - 2}}});
  Expect<AttachSession>();
  EXPECT_EQ(pool.front(), std::byte{0x5a});
  EXPECT_EQ(pool.back(), std::byte{0x5a});
  for (size_t i = 1; i + 1 < pool.size(); ++i) ASSERT_EQ(pool[i], std::byte{0});
}

TEST_F(ControlServerTest, ARefusalReachesTheTrainerWithAllItsParts) {
  const UniqueFd socket = Connect();
  Greet(socket);
  const ConnectionId id = Expect<ReserveJob>().connection;
  replies_.Push(
      Refused{id, Status(ErrorId::kPoolFull, "no room").Why("of the numbers").Fix("more")});
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
  replies_.Push(ReserveGranted{
      .connection = id, .session = 1, .rcache_bytes = uint64_t{1} << 55, .to_zero = {}});
  EXPECT_EQ(RefusalAt(socket).id(), ErrorId::kHostMemoryShort);
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
  for (const int64_t begun_ms : {0, 1, 5, 20}) {
    UniqueFd socket = Connect();
    Greet(socket);
    const ConnectionId id = Expect<ReserveJob>().connection;
    std::memset(pool.data(), 1, pool.size());
    replies_.Push(
        ReserveGranted{.connection = id, .session = 1, .rcache_bytes = 8192, .to_zero = {pool}});
    SteadyClock().SleepNs(begun_ms * kNsPerMs);
    socket.Reset();
    auto event = NextEvent();
    // Either the loss came before the preparation began, and nothing was touched, or all of it was
    // zeroed; perhaps before the loss.
    EXPECT_EQ(pool.front(), pool.back());
    if (event && std::holds_alternative<AttachSession>(*event)) event = NextEvent();
    EXPECT_TRUE(event && std::holds_alternative<ConnectionLost>(*event));
  }
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

// The reactor rests where it has closed a connection, until it may go on.
class RestingReactorTest : public ChildrenTest {
 protected:
  void SetUp() override {
    SetPointHook([this](const char* name) {
      if (std::string_view(name) != "control.connection_closed" || !rests_.exchange(false)) return;
      at_rest_.store(true);
      at_rest_.notify_one();
      at_rest_.wait(true);
    });
    ChildrenTest::SetUp();
  }
  void TearDown() override {
    GoOn();
    ChildrenTest::TearDown();
    SetPointHook({});
  }
  void RestAtTheEndOf(UniqueFd connection) {
    rests_.store(true);
    connection.Reset();
    at_rest_.wait(false);
  }
  void GoOn() {
    at_rest_.store(false);
    at_rest_.notify_one();
  }
  std::atomic<bool> rests_ = false, at_rest_ = false;
};

// asio keeps the event of the second's death in its queue while the place of that descriptor is
// given to the third.
TEST_F(RestingReactorTest, TheDeathOfOneClientIsNotTakenForThatOfTheNext) {
  std::array<int, 2> word{}, answer{};
  ASSERT_EQ(pipe2(word.data(), O_CLOEXEC) + pipe2(answer.data(), O_CLOEXEC), 0);
  const UniqueFd ends[] = {UniqueFd(word[0]), UniqueFd(word[1]), UniqueFd(answer[0]),
                           UniqueFd(answer[1])};
  const sockaddr_un address = Address();
  char byte = 0;
  const pid_t child = Child([&] {
    const int own = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    connect(own, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    for (int i = 0; i < 2; ++i) {  // connected, and closed
      (void)!write(answer[1], &byte, 1);
      (void)!read(word[0], &byte, 1);
      close(own);
    }
  });
  ASSERT_EQ(read(answer[0], &byte, 1), 1);
  UniqueFd second = Connect();  // not before the fork, which would keep it open
  Greet(second);
  Expect<ReserveJob>();  // so the child's connection, which came before, is watched by now
  RestAtTheEndOf(std::move(second));
  ASSERT_EQ(write(word[1], &byte, 1), 1);
  ASSERT_EQ(read(answer[0], &byte, 1), 1);
  const UniqueFd third = Connect();
  Kill(child);
  GoOn();
  Expect<ConnectionLost>();
  Expect<ConnectionLost>();
  Attach(third);
}

class SmallControlServerTest : public ControlServerTest {
 protected:
  void SetUp() override {
    Start({.socket_dir = "", .connections_max = 2, .greeting_timeout_ns = 100 * kNsPerMs});
  }
};

TEST_F(SmallControlServerTest, AGreetingThatIsNotFinishedInTimeLosesItsConnection) {
  const UniqueFd silent = Connect();
  const UniqueFd slow = Connect();
  const auto bytes = shm::Encode(testing::SmallSpec());
  Send(slow, shm::HelloFrame{shm::kOwnProtocols, 0, 1, getpid(), bytes.size(),
                             shm::Fingerprint(bytes), 0xabc});
  for (const UniqueFd* socket : {&silent, &slow}) {
    EXPECT_EQ(RefusalAt(*socket).id(), ErrorId::kHandshakeBad);
    EXPECT_FALSE(Receive(*socket).has_value());
  }
}

TEST_F(SmallControlServerTest, ASessionThatIsOpenIsNotUnderTheGreetingLimit) {
  const UniqueFd socket = Connect();
  Attach(socket);
  EXPECT_FALSE(shm::WaitForSocket(socket.get(), POLLIN, 300 * kNsPerMs))
      << "nothing may come, above all no end";
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

TEST_F(ControlServerTest, AFloodOfClientsWithoutAGreetingIsTakenSlowlyAndTheOneBehindItToo) {
  constexpr int kFlood = 3 * AcceptPace::kBurst;
  for (int i = 0; i < kFlood; ++i) Connect();
  const UniqueFd behind = Connect();
  Greet(behind);
  for (int i = 0; i < kFlood; ++i) Expect<ConnectionLost>();
  EXPECT_EQ(Expect<ReserveJob>().nonce, 0xabcU);
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
  const sockaddr_un address = Address();
  EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const auto frame = Receive(client);
  filler.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_TRUE(frame && std::holds_alternative<shm::RefusedFrame>(*frame));
  EXPECT_EQ(std::get<shm::RefusedFrame>(*frame).why.id(), ErrorId::kTooManySessions);
  Attach(Connect());  // and it has recovered
}

}  // namespace control_server_test
}  // namespace tidepool::memserver

// Nobody can hold up the server: not a trainer that is stopped in any state, not one that plays
// with the descriptors it shares, not one that floods or crashes in a loop; and a server that is
// itself stopped for a while is only waited for.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "shm/fd_socket.h"
#include "shm/socket_path.h"
#include "tests/fakes/real_clock.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/lying_client.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace stall_test {

constexpr int64_t kLimit = 30 * kNsPerSecond;
#ifdef TIDEPOOL_SANITIZED
constexpr int64_t kAnswerNs = 500 * kNsPerMs;
constexpr int kFlood = 1000, kCrashes = 40;
#else
constexpr int64_t kAnswerNs = 50 * kNsPerMs;
constexpr int kFlood = 2500, kCrashes = 200;
#endif

// Messages with descriptors; behind the first of them the server takes no more than 400 a second.
// scripts/nightly sends 100,000.
int Flood() {
  const char* wanted = std::getenv("TIDEPOOL_FLOOD");
  return wanted != nullptr ? std::atoi(wanted) : kFlood;
}

Process Thin(const std::string& socket_dir, const std::vector<std::string>& more,
             const std::string& stop_at = "") {
  std::vector<std::string> environment;
  if (!stop_at.empty()) environment.push_back("TIDEPOOL_STOP_AT=" + stop_at);
  return std::make_unique<ChildProcess>(ThinCommand(socket_dir, more), environment);
}

// All of its threads are stopped by a signal.
bool IsStopped(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const size_t at = text.rfind(") ");
  return at != std::string::npos && text[at + 2] == 'T';
}

bool WaitUntil(const std::function<bool()>& done) {
  SteadyClock clock;
  const int64_t end = clock.NowNs() + kLimit;
  while (!done()) {
    if (clock.NowNs() > end) return false;
    clock.SleepNs(kNsPerMs);
  }
  return true;
}

// The hash of a run's weights, as printed; empty when it failed.
std::string HashOf(ChildProcess* process) {
  const auto end = process->Wait(kLimit);
  if (!end || end->exit_code != 0) return "";
  const std::string output = process->Output();
  return output.substr(0, output.find(" from"));
}

const std::vector<std::string> kBeside{"--name", "beside", "--steps", "20"};

class Stall : public ::testing::Test {
 protected:
  void SetUp() override {
    expected_ = HashOf(Thin(daemon_.socket_dir(), kBeside).get());
    ASSERT_FALSE(expected_.empty());
    ASSERT_EQ(WaitForHoldings(daemon_.socket_dir(), kNothing, kLimit), kNothing);
    descriptors_ = SettledDescriptors();
  }
  void TearDown() override {
    EXPECT_EQ(WaitForHoldings(daemon_.socket_dir(), kNothing, kLimit), kNothing);
    ExpectBesideUndisturbed("behind all who may still wait to be accepted");
    EXPECT_EQ(SettledDescriptors(), descriptors_);
  }
  // A whole job beside whatever goes on: the same bits, at once.
  void ExpectBesideUndisturbed(const std::string& during) {
    const SteadyClock clock;
    const int64_t begin = clock.NowNs();
    EXPECT_EQ(HashOf(Thin(daemon_.socket_dir(), kBeside).get()), expected_) << during;
    EXPECT_LT(clock.NowNs() - begin, kPromptNs) << during;
  }

  const DaemonInProcess daemon_;
  std::string expected_;
  size_t descriptors_ = 0;
};

TEST_F(Stall, ATrainerThatIsStoppedInAnyStateHoldsUpNobodyAndGoesOn) {
  for (const char* point :
       {"client.connected", "client.hello_sent", "client.spec_sent", "client.attached",
        "client.put_sent:2", "client.schedule_sent", "client.fetch_sent:3",
        "client.gradient_sent:6", "client.end_step_sent:2", "client.outcome_taken:9",
        "client.save_sent", "client.goodbye_sent"}) {
    const TemporaryDirectory directory;
    const Process stopped =
        Thin(daemon_.socket_dir(),
             {"--name", "stopped", "--steps", "20", "--save", directory.path()}, point);
    ASSERT_TRUE(WaitUntil([&] { return IsStopped(stopped->pid()); }))
        << point << " was not reached: " << stopped->Output();
    ExpectBesideUndisturbed(point);
    stopped->Signal(SIGCONT);
    EXPECT_EQ(HashOf(stopped.get()), expected_) << point << ": " << stopped->Output();
  }
}

// The states of a trainer whose server has ended: it stops on its way back, or when it is back and
// sends again.
class StallOnTheWayBack : public DurableDaemon,
                          public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Points, StallOnTheWayBack,
                         ::testing::Values("client.server_lost", "client.resume_sent",
                                           "client.resumed", "client.resubmitted"),
                         [](const auto& test) {
                           return std::string(test.param).substr(std::string("client.").size());
                         });

TEST_P(StallOnTheWayBack, HoldsUpNobodyAndGoesOn) {
  const std::string expected = UndisturbedHash();
  const Process first = Serve({"--no-respawn"});
  // It pauses, so that it is still far from its end when the signal comes, however busy the machine
  // is.
  const auto command =
      ThinCommand(directory_.path(), {"--name", "job", "--steps", "60", "--norms", "--pause-ms",
                                      "50", "--server-timeout-ms", "20000"});
  ChildProcess stopped(command, {std::string("TIDEPOOL_STOP_AT=") + GetParam()});
  ASSERT_TRUE(stopped.WaitForOutput("norm 5 ", kLimit)) << stopped.Output();
  first->Signal(SIGKILL);
  ASSERT_TRUE(first->Wait(kLimit).has_value());
  const Process next = Serve({"--no-respawn"});
  ASSERT_TRUE(WaitUntil([&] { return IsStopped(stopped.pid()); })) << stopped.Output();
  const Process beside = Train({"--name", "beside", "--steps", "20"});
  EXPECT_NE(HashOf(beside.get()), "") << beside->Output();
  stopped.Signal(SIGCONT);
  const auto ended = stopped.Wait(kLimit);
  ASSERT_TRUE(ended && ended->exit_code == 0) << stopped.Output();
  EXPECT_EQ(HashIn(stopped.Output()), expected);
  EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
  next->Signal(SIGINT);
  EXPECT_EQ(next->Wait(kLimit)->exit_code, 0);
}

class StallAtAHandOver : public DurableDaemon, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Points, StallAtAHandOver,
                         ::testing::Values("client.put_sent:2", "client.fetch_sent:30",
                                           "client.gradient_sent:30", "client.end_step_sent:8"),
                         [](const auto& test) {
                           const std::string point = test.param;
                           return point.substr(point.find('.') + 1,
                                               point.find(':') - point.find('.') - 1);
                         });

// The server ends without it, within its two seconds; the rank finds the next one when it goes on.
TEST_P(StallAtAHandOver, HoldsItUpForNobody) {
  const std::string expected = UndisturbedHash();
  const Process first = Serve({"--no-respawn"});
  const auto command = ThinCommand(
      directory_.path(), {"--name", "job", "--steps", "60", "--server-timeout-ms", "20000"});
  ChildProcess stopped(command, {std::string("TIDEPOOL_STOP_AT=") + GetParam()});
  ASSERT_TRUE(WaitUntil([&] { return IsStopped(stopped.pid()); })) << stopped.Output();
  HandOver(first.get());
  const Process next = Serve({"--no-respawn"});
  stopped.Signal(SIGCONT);
  const auto ended = stopped.Wait(kLimit);
  ASSERT_TRUE(ended && ended->exit_code == 0) << stopped.Output();
  EXPECT_EQ(HashIn(stopped.Output()), expected);
  next->Signal(SIGINT);
  EXPECT_EQ(next->Wait(kLimit)->exit_code, 0);
}

TEST_F(Stall, ARankThatIsStoppedHoldsUpItsOwnJobOnly) {
  const auto rank = [this](const char* number, const std::string& stop_at) {
    return Thin(daemon_.socket_dir(),
                {"--name", "two", "--world", "2", "--rank", number, "--steps", "20"}, stop_at);
  };
  const Process first = rank("0", "");
  const Process second = rank("1", "client.end_step_sent:3");
  ASSERT_TRUE(WaitUntil([&] { return IsStopped(second->pid()); })) << second->Output();
  ExpectBesideUndisturbed("a rank is stopped in its third step");
  EXPECT_FALSE(first->Wait(0).has_value()) << "its peer waits: " << first->Output();
  second->Signal(SIGCONT);
  EXPECT_NE(HashOf(first.get()), "") << first->Output();
  EXPECT_NE(HashOf(second.get()), "") << second->Output();
}

// --- tricks with shared descriptors ---

class Tricks : public Stall {
 protected:
  static shm::JobSpec Spec(const char* name) {
    ThinOptions options;
    options.name = name;
    return SpecOf(options);
  }
  std::unique_ptr<LyingClient> Attach(const char* name) {
    auto client = LyingClient::Attach(daemon_.socket_dir(), Spec(name), 0);
    EXPECT_TRUE(client.ok()) << client.status().Format();
    if (!client.ok() || !client.value()->PutAllWeights(Spec(name)).ok()) return nullptr;
    return std::move(client).value();
  }
  void SetUp() override {
    Stall::SetUp();
    liar_ = Attach("liar");
    other_ = Attach("other");
    ASSERT_TRUE(liar_ && other_);
  }
  void TearDown() override {
    liar_.reset();
    other_.reset();
    Stall::TearDown();
  }

  static shm::Request Fetch() {
    shm::Request request{};
    request.op = static_cast<uint32_t>(shm::Op::kFetch);
    request.element_count = 4096;
    return request;
  }
  // The time to an answer, the best of a few: a server that hangs has no good one, a busy machine
  // has.
  void ExpectAnswers(const char* trick) {
    const SteadyClock clock;
    int64_t best = kLimit;
    for (int i = 0; i < 20; ++i) {
      const int64_t begin = clock.NowNs();
      other_->Submit(Fetch());
      shm::Completion completion{};
      ASSERT_TRUE(other_->Await(&completion, 2 * kNsPerSecond)) << trick;
      EXPECT_EQ(completion.error, 0U) << trick;
      best = std::min(best, clock.NowNs() - begin);
    }
    EXPECT_LT(best, kAnswerNs) << trick;
  }

  std::unique_ptr<LyingClient> liar_, other_;
};

TEST_F(Tricks, WithTheDoorbellHoldUpNobody) {
  const int bell = liar_->doorbell_fd();
  ExpectAnswers("none");
  // The flags belong to the open file that both share: the server's own descriptor blocks from now
  // on.
  ASSERT_EQ(fcntl(bell, F_SETFL, fcntl(bell, F_GETFL) & ~O_NONBLOCK), 0);
  ExpectAnswers("O_NONBLOCK is cleared");
  const uint64_t largest = ~uint64_t{0} - 1;
  uint64_t count = 0;
  ASSERT_EQ(fcntl(bell, F_SETFL, O_NONBLOCK), 0);
  [[maybe_unused]] const auto drained = read(bell, &count, sizeof count);
  ASSERT_EQ(write(bell, &largest, sizeof largest), static_cast<ssize_t>(sizeof largest));
  ASSERT_EQ(fcntl(bell, F_SETFL, 0), 0);
  ExpectAnswers("it is full and blocks whoever writes to it");
  ASSERT_EQ(read(bell, &count, sizeof count), static_cast<ssize_t>(sizeof count));
  ExpectAnswers("it is drained and blocks whoever reads it");
  ASSERT_EQ(fcntl(bell, F_SETFL, O_NONBLOCK), 0);
  for (int i = 0; i < 10'000; ++i) {
    liar_->Ring();
    [[maybe_unused]] const auto n = read(bell, &count, sizeof count);
  }
  ExpectAnswers("it is rung and drained in a loop");
  // The trickster has itself to blame for late answers, but gets them.
  liar_->Submit(Fetch());
  shm::Completion completion{};
  EXPECT_TRUE(liar_->Await(&completion, 2 * kNsPerSecond));
}

TEST_F(Tricks, WithLocksHoldUpNobody) {
  for (const int fd : liar_->segment_fds()) {
    ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0) << "the server must not lock what it shares";
    struct flock whole {};
    whole.l_type = F_RDLCK;
    ASSERT_EQ(fcntl(fd, F_OFD_SETLK, &whole), 0);
  }
  ExpectAnswers("the shared memory is locked");
  liar_->Submit(Fetch());
  shm::Completion completion{};
  EXPECT_TRUE(liar_->Await(&completion, 2 * kNsPerSecond));
}

TEST_F(Tricks, WithTheWordItSleepsOnHoldUpNobody) {
  for (const uint32_t word : {1U, ~0U, 0U}) {
    liar_->header()->client_waiting.store(word);
    for (int i = 0; i < 100; ++i) {
      liar_->Submit(Fetch());
      shm::Completion completion{};
      ASSERT_TRUE(liar_->Await(&completion, 2 * kNsPerSecond));
    }
    ExpectAnswers("it says that it waits, and does not");
  }
}

TEST_F(Tricks, ARingOfAnswersThatIsNeverDrainedHoldsUpNobody) {
  for (uint64_t i = 0; i < shm::kRingEntries; ++i) liar_->Submit(Fetch());
  ExpectAnswers("its ring of answers is full");
  for (uint64_t i = 0; i < shm::kRingEntries; ++i) liar_->Submit(Fetch());
  EXPECT_EQ(liar_->AwaitEnd().id(), ErrorId::kProtocolViolation);
  ExpectAnswers("its session was ended");
}

// --- floods ---

void SendDescriptors(int socket, const std::vector<int>& fds) {
  std::array<std::byte, 64> bytes{};
  iovec part{bytes.data(), bytes.size()};
  std::vector<std::byte> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  ASSERT_GE(sendmsg(socket, &message, MSG_NOSIGNAL), 0) << std::strerror(errno);
}

TEST_F(Stall, AFloodOfDescriptorsLeavesNone) {
  SplitMix64 random(9);
  const UniqueFd victim(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::string path = shm::DataSocketPath(daemon_.socket_dir());
  for (int i = 0, flood = Flood(); i < flood; ++i) {
    auto socket = shm::ConnectSocket(RealClock(), path, kLimit);
    ASSERT_TRUE(socket.ok()) << socket.status().Format();
    SendDescriptors(socket->get(), std::vector<int>(1 + random.Below(253), victim.get()));
    if (HasFatalFailure()) return;
    if (i % 100 != 0) continue;
    // The server has closed what came, and then the connection.
    ASSERT_TRUE(shm::WaitForSocket(socket->get(), POLLIN, kLimit));
  }
  ASSERT_EQ(WaitForHoldings(daemon_.socket_dir(), kNothing, kLimit), kNothing);
  // Served behind the last of it, which may wait to be accepted.
  ExpectBesideUndisturbed("after the flood");
  EXPECT_EQ(SettledDescriptors(), descriptors_ + 1) << "ours, and none of those that were sent";
}

TEST_F(Stall, ACrashLoopCostsOthersOnlyTime) {
  const SteadyClock clock;
  const auto time_of_beside = [&] {
    const int64_t begin = clock.NowNs();
    ExpectBesideUndisturbed("crash loop");
    return static_cast<double>(clock.NowNs() - begin) / kNsPerMs;
  };
  const double alone_ms = time_of_beside();
  double disturbed_ms = 0;
  for (int i = 0; i < kCrashes; ++i) {
    ChildProcess crash(ThinCommand(daemon_.socket_dir(), {"--name", "crash"}),
                       {"TIDEPOOL_KILL_AT=client.attached"});
    if (i % 20 == 0) disturbed_ms = std::max(disturbed_ms, time_of_beside());
    const auto end = crash.Wait(kLimit);
    ASSERT_TRUE(end.has_value());
    // A former crash may not be cleared away yet: then the rank is still taken.
    EXPECT_TRUE(end->signal == SIGKILL || crash.Output().find("TP3006") != std::string::npos)
        << crash.Output();
  }
  std::printf("20 steps beside a crash loop: %.1f ms, alone %.1f ms\n", disturbed_ms, alone_ms);
}

// --- clocks ---

// A time namespace: its monotonic clock is three years ahead of the server's.
const std::vector<std::string> kOtherTime{
    "/usr/bin/unshare", "--fork", "--time", "--monotonic", "100000000", "--boottime", "100000000"};

TEST_F(Stall, ATrainerWithAnotherClockTrainsTheSameBits) {
  std::vector<std::string> look = kOtherTime;
  look.insert(look.end(), {"/bin/cat", "/proc/uptime"});
  ChildProcess uptime(look);
  const auto end = uptime.Wait(kLimit);
  ASSERT_TRUE(end.has_value());
  // No right to it, or not in this kernel: then that is what the system says, and no trainer can
  // have it either.
  if (end->exit_code != 0) {
    EXPECT_NE(uptime.Output().find("unshare"), std::string::npos) << uptime.Output();
    std::printf("no time namespaces here: %s\n", uptime.Output().c_str());
    return;
  }
  ASSERT_GT(std::stod(uptime.Output()), 1e8) << "the clock is another one";
  std::vector<std::string> command = kOtherTime;
  const auto trainer = ThinCommand(daemon_.socket_dir(), {"--name", "elsewhen", "--steps", "20"});
  command.insert(command.end(), trainer.begin(), trainer.end());
  ChildProcess process(command);
  ExpectBesideUndisturbed("beside a trainer with another clock");
  EXPECT_EQ(HashOf(&process), expected_) << process.Output();
}

#ifdef TIDEPOOL_CLOCK_SHIM
// The wall clock of every process jumps by a month to and fro, each time that it is asked. Leases
// and time limits are of the other clock.
class JumpingClock : public DurableDaemon {};

TEST_F(JumpingClock, EndsNobodyAndChangesNoBit) {
  const std::string expected = UndisturbedHash();
  const std::vector<std::string> shim{std::string("LD_PRELOAD=") + TIDEPOOL_CLOCK_SHIM};
  const Process server = Serve({"--log-format", "json"}, shim);
  ChildProcess trainer(
      ThinCommand(directory_.path(), {"--name", "job", "--steps", "60", "--norms", "--pause-ms",
                                      "2", "--server-timeout-ms", "20000"}),
      shim);
  ASSERT_TRUE(trainer.WaitForOutput("norm 20 ", kLimit)) << trainer.Output();
  // Also while the keeper starts another server and the rank comes back.
  kill(ServerPid(), SIGKILL);
  const auto ended = trainer.Wait(kLimit);
  ASSERT_TRUE(ended && ended->exit_code == 0) << trainer.Output();
  EXPECT_EQ(HashIn(trainer.Output()), expected);
  EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing);
  std::set<std::string> months;
  std::istringstream lines(server->Output());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("{\"time\":\"")) months.insert(line.substr(9, 7));
  }
  EXPECT_GT(months.size(), 1U) << "the clock did jump: " << server->Output();
  kill(ServerPid(), SIGINT);
  EXPECT_TRUE(WaitForFilesToGo());
}
#endif

// A server that stands still for longer than its lease: nobody's death is concluded from that, on
// either side.
TEST(StoppedServer, IsWaitedForAndEndsNobody) {
  MemserverProcess server({"--lease", "500ms"});
  const std::vector<std::string> options{"--name", "waiting", "--steps", "20", "--norms"};
  const auto hash_in = [](const std::string& output) {
    return output.substr(output.find("hash "), 21);
  };
  const Process undisturbed = Thin(server.socket_dir(), options);
  ASSERT_NE(HashOf(undisturbed.get()), "");
  std::vector<std::string> slow = options;
  slow.insert(slow.end(), {"--pause-ms", "5"});
  const Process trainer = Thin(server.socket_dir(), slow);
  ASSERT_TRUE(trainer->WaitForOutput("norm 5 ", kLimit)) << trainer->Output();
  server.process().Signal(SIGSTOP);
  ASSERT_TRUE(WaitUntil([&] { return IsStopped(server.process().pid()); }));
  EXPECT_FALSE(trainer->Wait(2 * kNsPerSecond).has_value())
      << "it only waits: " << trainer->Output();
  server.process().Signal(SIGCONT);
  ASSERT_NE(HashOf(trainer.get()), "") << trainer->Output();
  EXPECT_EQ(hash_in(trainer->Output()), hash_in(undisturbed->Output()));
  EXPECT_EQ(WaitForHoldings(server.socket_dir(), kNothing, kLimit), kNothing);
  EXPECT_TRUE(server.StopsCleanly()) << server.process().Output();
}

}  // namespace stall_test
}  // namespace tidepool::testing

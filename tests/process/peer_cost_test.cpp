// What clients and readers can cost the daemon: greetings that never end, also in a memory cgroup,
// and a log that nobody reads.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "memserver/control/bounds/peer_memory.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/messages.h"
#include "shm/socket_path.h"
#include "tests/fakes/real_clock.h"
#include "tests/not_run.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memory_cgroup.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace peer_cost_test {

constexpr int64_t kLimit = 60 * kNsPerSecond;
#ifdef TIDEPOOL_SANITIZED
constexpr uint64_t kRoomForMore = 2 * kGiB;  // a sanitizer keeps what was freed for a while
#else
constexpr uint64_t kRoomForMore = 64 * kMiB;
#endif

// A client that announces a description and sends it, but for its end.
class EndlessGreeting {
 public:
  EndlessGreeting(const std::string& socket_dir, uint64_t bytes) : bytes_(bytes) {
    auto socket = shm::ConnectSocket(RealClock(), shm::DataSocketPath(socket_dir), kLimit);
    if (!socket.ok()) return;
    socket_ = std::move(socket).value();
    Say(shm::HelloFrame{shm::kOwnProtocols, 0, 1, getpid(), bytes, 1, 0xabc});
  }
  // One more part; false when there is nothing left to be said, or nobody who listens.
  bool SendPart() {
    const uint64_t part = std::min<uint64_t>(shm::kPartBytesMax, bytes_ - sent_ - 1);
    if (part == 0 || !Say(shm::SpecPartFrame{std::vector<std::byte>(part, std::byte{1})}))
      return false;
    sent_ += part;
    return true;
  }
  bool is_open() const { return socket_.valid(); }
  // Why the server has refused it; ok when it has not.
  Status Refusal() {
    shm::Packet packet;
    if (!socket_.valid() || !shm::WaitForSocket(socket_.get(), POLLIN, 0)) return refused_;
    if (shm::ReceivePacket(socket_.get(), 0, &packet) != shm::SocketResult::kDone) return refused_;
    auto frame = shm::DecodeFrame(packet.bytes);
    if (frame.ok() && std::holds_alternative<shm::RefusedFrame>(*frame))
      refused_ = std::get<shm::RefusedFrame>(*frame).why;
    return refused_;
  }

 private:
  bool Say(const shm::Frame& frame) {
    const auto bytes = shm::EncodeFrame(frame);
    for (;;) {
      const auto result = shm::SendPacket(socket_.get(), bytes);
      if (result == shm::SocketResult::kDone) return true;
      if (result != shm::SocketResult::kWouldBlock ||
          !shm::WaitForSocket(socket_.get(), POLLOUT, kLimit))
        return false;
    }
  }
  UniqueFd socket_;
  uint64_t bytes_, sent_ = 0;
  Status refused_;
};

// Most that a process has had in memory.
uint64_t PeakBytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * kKiB;
  }
  return 0;
}

TEST(Greetings, Of64ClientsThatNeverFinishTakeNoMoreThanAUserMayHave) {
  MemserverProcess server;
  const uint64_t before = PeakBytes(server.process().pid());
  ASSERT_GT(before, 0U);
  std::vector<std::unique_ptr<EndlessGreeting>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::make_unique<EndlessGreeting>(server.socket_dir(), 60 * kMiB));
    while (clients.back()->SendPart()) {
    }
  }
  const uint64_t most = memserver::PeerMemoryLimits().user;
  EXPECT_LT(PeakBytes(server.process().pid()), before + most + kRoomForMore);
  uint64_t refused = 0;
  for (const auto& client : clients) {
    const Status why = client->Refusal();
    if (why.id() == ErrorId::kNotReady) ++refused;
    // Its time to greet was over, and another one had its room.
    const bool too_slow = why.id() == ErrorId::kHandshakeBad;
    EXPECT_TRUE(why.ok() || too_slow || why.id() == ErrorId::kNotReady) << why.Format();
  }
  EXPECT_GT(refused, 0U);

  // Those that have left make room: not at once, as their end is noticed behind their last words.
  clients.clear();
  ChildProcess trainer(ThinCommand(server.socket_dir(), {"--server-timeout-ms", "60000"}));
  const auto end = trainer.Wait(kLimit);
  EXPECT_TRUE(end && end->exit_code == 0) << trainer.Output();
  EXPECT_TRUE(server.StopsCleanly()) << server.process().Output();
}

// --- in a cgroup, by another user ---

constexpr uint32_t kGroup = 61700, kOperators = 61701, kUser = 61711;

// 250 greetings of 63 MiB that never end; those that are refused begin again. In a child, until it
// is killed.
[[noreturn]] void Attack(const std::string& socket_dir) {
  const gid_t group = kGroup;
  if (setgroups(1, &group) != 0 || setresgid(kUser, kUser, kUser) != 0 ||
      setresuid(kUser, kUser, kUser) != 0)
    _exit(1);
  std::vector<std::unique_ptr<EndlessGreeting>> clients(250);
  for (;;) {
    for (auto& client : clients) {
      if (client == nullptr || !client->is_open() || !client->SendPart())
        client = std::make_unique<EndlessGreeting>(socket_dir, 63 * kMiB);
    }
  }
}

class InACgroup : public DurableDaemon {};

TEST_F(InACgroup, GreetingsOfAnotherUserEndNeitherTheServerNorAJob) {
  const MemoryCgroup cgroup(768 * kMiB);
  const std::string missing =
      geteuid() != 0 ? "the right to become another user" : cgroup.missing();
  if (!missing.empty()) return NotRun(missing);
  const auto command =
      MemserverCommand(directory_.path(),
                       {"--mode", "service", "--group", std::to_string(kGroup), "--operator-group",
                        std::to_string(kOperators), "--keeper", "process", "--lease", "20s"});
  ChildProcess server(cgroup.Command(command));
  ASSERT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing) << server.Output();
  const Process job = Train({"--pause-ms", "50"});
  const pid_t attacker = fork();
  if (attacker == 0) Attack(directory_.path());

  ExpectDone(job.get(), UndisturbedHash());
  EXPECT_EQ(cgroup.Killed(), 0U) << "processes that the kernel has killed";
  EXPECT_EQ(ServerPid(), server.pid());
  EXPECT_EQ(waitpid(attacker, nullptr, WNOHANG), 0) << "it has attacked all the while";
  kill(attacker, SIGKILL);
  waitpid(attacker, nullptr, 0);
  KillDaemon(directory_.path());
  server.Wait(kLimit);
}

// --- a log that nobody reads ---

// A pipe in which nothing has room: whoever writes to it waits.
class FullPipe {
 public:
  FullPipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
    read_end_ = UniqueFd(ends[0]);
    write_end_ = UniqueFd(ends[1]);
    while (write(write_end_.get(), "x", 1) > 0) {
    }
    EXPECT_EQ(fcntl(write_end_.get(), F_SETFL, 0), 0);
  }
  int fd() const { return write_end_.get(); }
  // The command, with its stderr there.
  std::vector<std::string> Command(const std::vector<std::string>& command) const {
    std::vector<std::string> words{"/bin/sh", "-c",
                                   "exec \"$@\" 2> /proc/self/fd/" + std::to_string(fd()), "sh"};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

 private:
  UniqueFd read_end_, write_end_;
};

TEST(AFullLog, HoldsUpNeitherTrainingNorQuestionsNorTheEnd) {
  const FullPipe log;
  const TemporaryDirectory directory;
  ChildProcess server(log.Command(MemserverCommand(directory.path(), {"--log-level", "debug"})), {},
                      {log.fd()});
  ASSERT_EQ(WaitForHoldings(directory.path(), kNothing, kLimit), kNothing);
  for (int run = 0; run < 3; ++run) {
    ChildProcess trainer(ThinCommand(directory.path()));
    const auto end = trainer.Wait(kLimit);
    ASSERT_TRUE(end && end->exit_code == 0) << trainer.Output();
  }
  EXPECT_NE(AskAdmin(directory.path(), "/v1/events").find("rank attached"), std::string::npos)
      << "what is kept for whoever asks is whole";
  server.Signal(SIGTERM);
  const auto end = server.Wait(kLimit);
  EXPECT_TRUE(end && end->exit_code == 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// The last error of a start that fails is for a person, too: it is not waited for.
TEST(AFullLog, HoldsUpNoStartThatFails) {
  const FullPipe log;
  MemserverProcess first;
  ChildProcess second(log.Command(MemserverCommand(first.socket_dir())), {}, {log.fd()});
  const auto end = second.Wait(kLimit);
  EXPECT_TRUE(end && end->exit_code != 0) << "the directory is served already";
}

}  // namespace peer_cost_test
}  // namespace tidepool::testing

// A client with files whose close never ends, and a file system that never answers: nobody else
// notices, memserver ends when it is told to or killed, and the next one starts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/messages.h"
#include "shm/socket_path.h"
#include "tests/fakes/real_clock.h"
#include "tests/fakes/silent_files.h"
#include "tests/not_run.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace silent_files_test {

// What sends them; it has them open until the end, and none of them can be closed.
class Senders {
 public:
  explicit Senders(uint32_t owner = geteuid()) : files_(std::make_unique<SilentFiles>(owner)) {}
  ~Senders() { End(); }
  Senders(const Senders&) = delete;
  Senders& operator=(const Senders&) = delete;
  bool CanRun() const {
    if (!files_->missing().empty()) NotRun(files_->missing());
    return files_->missing().empty();
  }
  const SilentFiles& files() const { return *files_; }
  // With a frame that calls for descriptors, and with one that does not. False when nothing could
  // be sent.
  bool Send(const std::string& socket_dir, const shm::Frame& frame) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return false;
    const UniqueFd read_end(ends[0]), write_end(ends[1]);
    const pid_t pid = fork();
    if (pid == 0) {
      close(files_->connection());
      const std::array<int, 1> fds{open(files_->file().c_str(), O_RDWR | O_CLOEXEC)};
      auto socket = shm::ConnectSocket(RealClock(), shm::DataSocketPath(socket_dir), kPromptNs);
      const bool sent =
          fds[0] >= 0 && socket.ok() &&
          shm::SendPacket(socket->get(), shm::EncodeFrame(frame), fds) == shm::SocketResult::kDone;
      [[maybe_unused]] const auto n = write(write_end.get(), sent ? "y" : "n", 1);
      for (;;) pause();
    }
    senders_.push_back(pid);
    char word = 'n';
    return read(read_end.get(), &word, 1) == 1 && word == 'y';
  }
  bool WaitForUnanswered(uint32_t count) const {
    SteadyClock clock;
    for (const int64_t end = clock.NowNs() + kPromptNs; files_->unanswered() < count;) {
      if (clock.NowNs() > end) return false;
      clock.SleepNs(kNsPerMs);
    }
    return true;
  }
  void End() {
    for (const pid_t pid : senders_) kill(pid, SIGKILL);
    files_.reset();  // only now can those end that wait in a close
    for (const pid_t pid : senders_) waitpid(pid, nullptr, 0);
    senders_.clear();
  }

 private:
  std::unique_ptr<SilentFiles> files_;
  std::vector<pid_t> senders_;
};

shm::ResumeFrame Resume() {
  return {shm::kOwnProtocols, 0, 0x10b, 0xabc, 8192};
}

class SilentFilesTest : public DurableDaemon {};

TEST_F(SilentFilesTest, HoldUpNobodyAndTheNextServerStartsWhenThisOneIsKilled) {
  Senders senders;
  if (!senders.CanRun()) return;
  const Process server = Serve();
  const Process job = Train({"--pause-ms", "20"});
  ASSERT_TRUE(senders.Send(directory_.path(), shm::GoodbyeFrame{}));
  ASSERT_TRUE(senders.Send(directory_.path(), Resume()));
  ASSERT_TRUE(senders.Send(directory_.path(), Resume()));
  ASSERT_TRUE(senders.WaitForUnanswered(2))
      << "the server has not tried to close those that belong to their frame";
  const Process beside = Train({"--name", "beside"});
  ExpectDone(beside.get(), UndisturbedHash());

  const pid_t killed = ServerPid();
  kill(killed, SIGKILL);
  ExpectDone(job.get(), UndisturbedHash());
  EXPECT_NE(ServerPid(), killed);
  const Process after = Train({"--name", "after"});
  ExpectDone(after.get(), UndisturbedHash());
  EXPECT_GE(senders.files().unanswered(), 2U) << "they are as stuck as before";
}

TEST_F(SilentFilesTest, ASaveThatNeverEndsHoldsUpNoOtherJobNorItsSaveAndNotTheNextServer) {
  Senders senders;
  if (!senders.CanRun()) return;
  const Process server = Serve();
  const Process job = Train({"--pause-ms", "20"});
  const Process saves =
      Train({"--name", "saves", "--steps", "1", "--save", senders.files().directory()});
  ASSERT_TRUE(senders.WaitForUnanswered(1)) << "nothing was saved there";
  const TemporaryDirectory sound;
  const Process beside = Train({"--name", "beside", "--save", sound.path()});
  ExpectDone(beside.get(), UndisturbedHash());
  EXPECT_FALSE(std::filesystem::is_empty(sound.path())) << "it is saved while the other save hangs";

  const pid_t killed = ServerPid();
  kill(killed, SIGKILL);
  ExpectDone(job.get(), UndisturbedHash());
  EXPECT_NE(ServerPid(), killed);
}

// --- of another user ---

constexpr gid_t kUsers = 61700, kOperators = 61701;
const OtherUser kAlice{61710, {kUsers}}, kBob{61711, {kUsers}};

// A memserver of root, for a group of users.
class SilentFilesOfTwoUsers : public SilentFilesTest {
 protected:
  Process ServeUsers() const {
    return Serve({"--mode", "service", "--group", std::to_string(kUsers), "--operator-group",
                  std::to_string(kOperators)});
  }
  Process TrainAs(const OtherUser& user, std::vector<std::string> flags) const {
    flags.insert(flags.end(), {"--server-timeout-ms", "20000"});
    return std::make_unique<ChildProcess>(ThinCommand(directory_.path(), flags),
                                          std::vector<std::string>(), std::vector<int>(), user);
  }
};

TEST_F(SilentFilesOfTwoUsers, ASaveOfOneThatNeverEndsHoldsUpNeitherUpdatesNorASaveOfTheOther) {
  if (geteuid() != 0) return NotRun("the right to become another user");
  Senders senders(kAlice.uid);
  if (!senders.CanRun()) return;
  // memserver asks the kernel only, which knows whose directory it is once somebody has asked the
  // file system.
  ChildProcess look({"/usr/bin/stat", senders.files().directory()});
  const auto looked = look.Wait(kLimit);
  ASSERT_TRUE(looked && looked->exit_code == 0) << look.Output();
  const Process server = ServeUsers();
  const Process running = TrainAs(kBob, {"--name", "running", "--steps", "60", "--pause-ms", "20"});
  const Process saves =
      TrainAs(kAlice, {"--name", "saves", "--steps", "1", "--save", senders.files().directory()});
  ASSERT_TRUE(senders.WaitForUnanswered(1)) << "nothing was saved there: " << saves->Output();

  const TemporaryDirectory sound;
  ASSERT_EQ(chown(sound.path().c_str(), kBob.uid, kBob.uid), 0);
  const Process beside =
      TrainAs(kBob, {"--name", "beside", "--steps", "60", "--save", sound.path()});
  ExpectDone(beside.get(), UndisturbedHash());
  EXPECT_FALSE(std::filesystem::is_empty(sound.path())) << "it is saved while the other save hangs";
  ExpectDone(running.get(), UndisturbedHash());
  EXPECT_FALSE(saves->Wait(0)) << "its save has not ended: " << saves->Output();
  EXPECT_GE(senders.files().unanswered(), 1U);
}

TEST(SilentFilesOfAClient, DoNotKeepAServerThatIsToldToEnd) {
  Senders senders;
  if (!senders.CanRun()) return;
  MemserverProcess server;
  ASSERT_TRUE(senders.Send(server.socket_dir(), Resume()));
  ASSERT_TRUE(senders.WaitForUnanswered(1));
  EXPECT_TRUE(server.StopsCleanly()) << server.process().Output();
}

}  // namespace silent_files_test
}  // namespace tidepool::testing

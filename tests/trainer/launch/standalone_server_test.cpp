#include "trainer/launch/standalone_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "trainer/launch/stop_flag.h"

namespace tidepool::trainer {
namespace standalone_server_test {

using ::testing::HasSubstr;

// Speaks as much of memserver as the launcher sees: opens data.sock, ends on SIGTERM and at the end
// of the pipe, removes its socket.
constexpr const char* kFakeServer = R"(#!/usr/bin/python3
import os, select, signal, socket, sys
flags = dict(zip(sys.argv[2::2], sys.argv[3::2]))
print("arguments", *sys.argv[1:], flush=True)
mode = flags.get("--mode", "good")
if mode == "fails":
    for i in range(30): print("line", i, flush=True)
    sys.exit(21)
def end(*_):
    raise SystemExit(5 if mode == "ends-badly" else 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "deaf" else end)
with open(flags["--socket-dir"] + "/memserver.lock", "w") as lock: lock.write(str(os.getpid()))
path = flags["--socket-dir"] + "/data.sock"
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if mode != "slow":
    server.bind(path)
    server.listen()
try:
    life = int(flags["--end-with-fd"])
    while True:
        ready, _, _ = select.select([life] if mode == "slow" else [life, server], [], [])
        if server in ready: server.accept()
        if life in ready and mode != "deaf": end()
        if life in ready: select.select([], [], [], 0.05)
finally:
    if os.path.exists(path): os.unlink(path)
)";

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// True once no process `pid` is left (a zombie that init has yet to collect does not count).
bool Gone(pid_t pid) {
  SteadyClock clock;
  for (int i = 0; i < 5000; ++i) {
    const std::string stat = TextOf("/proc/" + std::to_string(pid) + "/stat");
    if (stat.empty() || stat.find(") Z ") != std::string::npos) return true;
    clock.SleepNs(2 * kNsPerMs);
  }
  return false;
}

class StandaloneServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "/solo-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
    setenv("TMPDIR", directory_.c_str(), 1);
    options_.program = directory_ + "/memserver";
    options_.pool_bytes = 1 << 20;
    options_.rcache_limit_bytes = 4096;
    options_.ready_timeout_ns = 30 * kNsPerSecond;
    std::ofstream(options_.program) << kFakeServer;
    ASSERT_EQ(chmod(options_.program.c_str(), 0700), 0);
  }
  void TearDown() override {
    unsetenv("TMPDIR");
    std::filesystem::remove_all(directory_);
  }
  void Mode(const std::string& mode) { options_.extra_flags = {"--mode", mode}; }
  // Nothing but the fake program itself is left of all servers.
  bool Clean() const {
    const auto begin = std::filesystem::directory_iterator(directory_);
    return std::distance(begin, std::filesystem::directory_iterator()) == 1;
  }
  bool CleanSoon() const {
    SteadyClock clock;
    for (int i = 0; i < 5000 && !Clean(); ++i) clock.SleepNs(2 * kNsPerMs);
    return Clean();
  }

  std::string directory_;
  StandaloneOptions options_;
  SteadyClock clock_;
};

TEST_F(StandaloneServerTest, StartsInAPrivateDirectoryAndLeavesNothing) {
  auto server = StandaloneServer::Start(options_, &clock_);
  ASSERT_TRUE(server.ok()) << server.status().Format();
  const std::string place = server.value()->socket_dir();
  EXPECT_THAT(place, ::testing::StartsWith(directory_ + "/tidepool-"));
  struct stat status {};
  ASSERT_EQ(stat(place.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  EXPECT_TRUE(std::filesystem::exists(place + "/data.sock"));
  EXPECT_THAT(server.value()->LogTail(),
              HasSubstr("arguments run --socket-dir " + place +
                        " --pool 1048576 --rcache-limit 4096 --end-with-fd "));
  const Status stopped = server.value()->Stop();
  EXPECT_TRUE(stopped.ok()) << stopped.Format();
  EXPECT_TRUE(server.value()->Stop().ok());
  EXPECT_TRUE(Clean());
}

TEST_F(StandaloneServerTest, TheDestructorStops) {
  { ASSERT_TRUE(StandaloneServer::Start(options_, &clock_).ok()); }
  EXPECT_TRUE(Clean());
}

TEST_F(StandaloneServerTest, AServerThatFailsAtStartIsShownWithTheEndOfItsLog) {
  Mode("fails");
  const auto server = StandaloneServer::Start(options_, &clock_);
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.status().id(), ErrorId::kNoServer);
  EXPECT_THAT(server.status().what(), HasSubstr("exit code 21"));
  EXPECT_THAT(server.status().why(), HasSubstr("\nline 10\n"));  // the last twenty of thirty
  EXPECT_THAT(server.status().why(), ::testing::Not(HasSubstr("line 9\n")));
  EXPECT_TRUE(Clean());
}

TEST_F(StandaloneServerTest, AServerThatIsNotReadyInTimeIsEnded) {
  Mode("slow");
  options_.ready_timeout_ns = 300 * kNsPerMs;
  const auto server = StandaloneServer::Start(options_, &clock_);
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.status().id(), ErrorId::kNoServer);
  EXPECT_THAT(server.status().what(), HasSubstr("not ready within 300 ms"));
  EXPECT_TRUE(Clean());
}

TEST_F(StandaloneServerTest, ASignalEndsTheWait) {
  Mode("slow");
  StopFlag::Install();
  raise(SIGTERM);
  const auto server = StandaloneServer::Start(options_, &clock_);
  StopFlag::Uninstall();
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.status().what(), HasSubstr("stopped by a signal"));
  EXPECT_TRUE(Clean());
}

TEST_F(StandaloneServerTest, ADeafServerIsKilled) {
  Mode("deaf");
  options_.stop_timeout_ns = 100 * kNsPerMs;
  auto server = StandaloneServer::Start(options_, &clock_);
  ASSERT_TRUE(server.ok()) << server.status().Format();
  const int pid = std::stoi(TextOf(server.value()->socket_dir() + "/memserver.lock"));
  const Status stopped = server.value()->Stop();
  EXPECT_EQ(stopped.id(), ErrorId::kServerGone);
  EXPECT_THAT(stopped.what(), HasSubstr("had to be killed"));
  EXPECT_TRUE(Clean());
  EXPECT_TRUE(Gone(pid));
}

TEST_F(StandaloneServerTest, AServerThatDiedDuringTheRunIsTold) {
  auto server = StandaloneServer::Start(options_, &clock_);
  ASSERT_TRUE(server.ok()) << server.status().Format();
  kill(std::stoi(TextOf(server.value()->socket_dir() + "/memserver.lock")), SIGKILL);
  EXPECT_TRUE(CleanSoon());  // the guard cleans up
  const Status stopped = server.value()->Stop();
  EXPECT_EQ(stopped.id(), ErrorId::kServerGone);
  EXPECT_THAT(stopped.why(), HasSubstr("arguments run"));  // the log outlives its name
}

TEST_F(StandaloneServerTest, AServerThatEndsBadlyIsTold) {
  Mode("ends-badly");
  auto server = StandaloneServer::Start(options_, &clock_);
  ASSERT_TRUE(server.ok()) << server.status().Format();
  EXPECT_THAT(server.value()->Stop().what(), HasSubstr("ended badly, exit code 5"));
  EXPECT_TRUE(Clean());
}

TEST_F(StandaloneServerTest, NothingIsLeftWhenTheTrainerIsKilled) {
  const pid_t trainer = fork();
  if (trainer == 0) {
    const auto server = StandaloneServer::Start(options_, &clock_);
    if (server.ok()) kill(getpid(), SIGKILL);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(trainer, &status, 0), trainer);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(CleanSoon());
}

TEST_F(StandaloneServerTest, ALongTmpdirIsNotUsed) {
  const std::string deep = directory_ + "/" + std::string(100, 'x');
  std::filesystem::create_directory(deep);
  setenv("TMPDIR", deep.c_str(), 1);
  auto server = StandaloneServer::Start(options_, &clock_);
  ASSERT_TRUE(server.ok()) << server.status().Format();
  EXPECT_THAT(server.value()->socket_dir(), ::testing::StartsWith("/tmp/tidepool-"));
  const std::string place = server.value()->socket_dir();
  EXPECT_TRUE(server.value()->Stop().ok());
  EXPECT_FALSE(std::filesystem::exists(place));
}

TEST_F(StandaloneServerTest, AnUnwritableTmpdirIsAnError) {
  setenv("TMPDIR", "/proc/nowhere", 1);
  const auto server = StandaloneServer::Start(options_, &clock_);
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.status().id(), ErrorId::kSocketFailed);
}

TEST(FindProgramBeside, LooksBesideUsAndInPath) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  EXPECT_EQ(FindProgramBeside(std::filesystem::path(self).filename().string()).value(), self);
  EXPECT_THAT(FindProgramBeside("sh").value(), ::testing::EndsWith("/sh"));
  const auto missing = FindProgramBeside("no-such-program-here");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().id(), ErrorId::kFileUnreadable);
}

TEST(StopFlag, RemembersTheFirstSignalAndLeavesTheSecondItsDefault) {
  StopFlag::Install();
  EXPECT_FALSE(StopFlag::Requested());
  raise(SIGINT);
  EXPECT_TRUE(StopFlag::Requested());
  EXPECT_EQ(StopFlag::Signal(), SIGINT);
  struct sigaction action {};
  for (const int signal : {SIGINT, SIGTERM}) {
    sigaction(signal, nullptr, &action);
    EXPECT_EQ(action.sa_handler, SIG_DFL);
  }
  StopFlag::Uninstall();
  EXPECT_FALSE(StopFlag::Requested());
}

}  // namespace standalone_server_test
}  // namespace tidepool::trainer

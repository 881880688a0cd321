// Users of one machine: who reaches memserver's sockets, what each may see and change, and that
// none can look into the daemon's memory. Programs run as other users here, which needs root;
// without it, the system refuses to start them.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error_catalog.h"
#include "base/unique_fd.h"
#include "shm/fd_socket.h"
#include "shm/frames.h"
#include "shm/socket_path.h"
#include "tests/fakes/real_clock.h"
#include "tests/process/rig/child_process.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/process/rig/thin_job.h"

namespace tidepool::testing {
namespace isolation_test {

constexpr uint32_t kUsers = 61700, kOperators = 61701;  // groups; they need no names

struct User {
  uint32_t uid = 0;
  std::vector<gid_t> groups;
};
const User kAlice{61710, {kUsers}}, kBob{61711, {kUsers}}, kOperator{61712, {kUsers, kOperators}},
    kStranger{61713, {}};

constexpr int kNotStarted = 126;

// Becomes the user, for good. Calls only what is safe between fork and exec.
bool Become(const User& user) {
  return setgroups(user.groups.size(), user.groups.data()) == 0 &&
         setresgid(user.uid, user.uid, user.uid) == 0 &&
         setresuid(user.uid, user.uid, user.uid) == 0;
}

struct Ended {
  int exit_code = -1;
  std::string output;  // stdout and stderr
};

// Runs a program as another user. It is opened before, so that the user needs no path to it.
Ended RunAs(const User& user, const std::vector<std::string>& command) {
  const UniqueFd program(open(command[0].c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    dup2(write_end.get(), STDOUT_FILENO);
    dup2(write_end.get(), STDERR_FILENO);
    if (!Become(user)) _exit(kNotStarted);
    syscall(SYS_execveat, program.get(), "", words.data(), environ, AT_EMPTY_PATH);
    _exit(kNotStarted);
  }
  write_end.Reset();
  Ended run;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(read_end.get(), buffer, sizeof buffer)) > 0;)
    run.output.append(buffer, static_cast<size_t>(n));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

// The same for something small that this process does itself; returns its result.
template <typename Act>
int DoAs(const User& user, Act act) {
  const pid_t child = fork();
  if (child == 0) _exit(Become(user) ? act() : kNotStarted);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The exit code to expect of a program as another user: only root can start it.
int Expected(int exit_code) {
  return geteuid() == 0 ? exit_code : kNotStarted;
}

class Service : public ::testing::Test {
 protected:
  static memserver::ServerOptions Options() {
    memserver::ServerOptions options = DaemonInProcess::SmallServer();
    auto access = memserver::ServiceAccess(std::to_string(geteuid() == 0 ? kUsers : getegid()),
                                           std::to_string(kOperators));
    EXPECT_TRUE(access.ok()) << access.status().Format();
    options.access = *access;
    options.settings.limits.user_sessions_max = 1;
    return options;
  }
  explicit Service(const memserver::ServerOptions& options = Options()) : daemon_(options) {}
  std::vector<std::string> Memctl(std::vector<std::string> words) const {
    words.insert(words.begin(), {TIDEPOOL_MEMCTL, "-s", daemon_.socket_dir()});
    return words;
  }
  static ThinOptions Thin(const std::string& socket_dir) {
    ThinOptions options;
    options.socket_dir = socket_dir;
    options.name = "ours";
    return options;
  }
  mode_t ModeOf(const std::string& path) const {
    struct stat about {};
    EXPECT_EQ(stat(path.c_str(), &about), 0) << path;
    EXPECT_EQ(about.st_gid, geteuid() == 0 ? kUsers : getegid()) << path;
    return about.st_mode & 0777U;
  }

  DaemonInProcess daemon_;
};

TEST_F(Service, TheSocketsAreTheGroups) {
  EXPECT_EQ(ModeOf(daemon_.socket_dir()), 0750U);
  EXPECT_EQ(ModeOf(shm::DataSocketPath(daemon_.socket_dir())), 0660U);
  EXPECT_EQ(ModeOf(shm::AdminSocketPath(daemon_.socket_dir())), 0660U);
}

TEST_F(Service, AStrangerReachesNothing) {
  EXPECT_EQ(RunAs(kStranger, ThinCommand(daemon_.socket_dir(), {"--connect-timeout-ms", "100"}))
                .exit_code,
            Expected(kExitNoServer));
  EXPECT_EQ(RunAs(kStranger, Memctl({"status"})).exit_code, Expected(kExitRefused));
}

TEST_F(Service, AMemberTrainsAJobOfItsOwn) {
  const Ended run = RunAs(kAlice, ThinCommand(daemon_.socket_dir(), {"--steps", "2"}));
  EXPECT_EQ(run.exit_code, Expected(kExitOk)) << run.output;
}

TEST_F(Service, AJobBelongsToWhoStartedIt) {
  ThinOptions ours = Thin(daemon_.socket_dir());
  bool asked = false;
  ours.after_step = [&](uint64_t step) {
    if (step != 1) return;
    asked = true;
    const Ended join = RunAs(kBob, ThinCommand(daemon_.socket_dir(), {"--name", "ours"}));
    EXPECT_EQ(join.exit_code, Expected(kExitRefused)) << join.output;
    const Ended seen = RunAs(kBob, Memctl({"ps"})),
                one = RunAs(kBob, Memctl({"ps", "--job", "ours"}));
    EXPECT_EQ(seen.exit_code, Expected(kExitOk));
    EXPECT_EQ(seen.output.find("ours"), std::string::npos) << seen.output;
    EXPECT_EQ(one.exit_code, Expected(kExitNotFound)) << one.output;
    EXPECT_EQ(RunAs(kBob, Memctl({"job", "quota", "ours", "--weight", "2"})).exit_code,
              Expected(kExitRefused));
    const Ended operator_sees = RunAs(kOperator, Memctl({"ps"}));
    EXPECT_NE(operator_sees.output.find(geteuid() == 0 ? "ours" : ""), std::string::npos)
        << operator_sees.output;
    const Ended changed = RunAs(kOperator, Memctl({"job", "quota", "ours", "--weight", "2"}));
    EXPECT_EQ(changed.exit_code, Expected(kExitOk)) << changed.output;
  };
  EXPECT_TRUE(RunThinJob(ours).ok());
  EXPECT_TRUE(asked);
}

// Equal bytes of two users are two chunks: the second user cannot tell that somebody has them.
TEST_F(Service, AFrozenBaseIsSharedWithNobodyElse) {
  ThinOptions ours = Thin(daemon_.socket_dir());
  ours.frozen_chunks = 2;
  bool asked = false;
  ours.after_step = [&](uint64_t step) {
    if (step != 1) return;
    asked = true;
    const Ended other =
        RunAs(kAlice, ThinCommand(daemon_.socket_dir(), {"--steps", "2", "--frozen", "2"}));
    EXPECT_EQ(other.exit_code, Expected(kExitOk)) << other.output;
    const std::string all = std::to_string(2 * ours.chunk_elements * sizeof(float));
    EXPECT_NE(other.output.find(geteuid() == 0 ? "frozen put " + all + "\n" : ""),
              std::string::npos)
        << other.output;
  };
  EXPECT_TRUE(RunThinJob(ours).ok());
  EXPECT_TRUE(asked);
}

// When a service allows a user one rank, a run of two gets no room, however long it waits.
TEST_F(Service, AUserHasSoManyRanksAndNoMore) {
  const Ended refused =
      RunAs(kAlice, ThinCommand(daemon_.socket_dir(), {"--world", "2", "--wait-ms", "20000"}));
  EXPECT_EQ(refused.exit_code, Expected(kExitRefused)) << refused.output;
  EXPECT_NE(refused.output.find(geteuid() == 0 ? "TP2104" : ""), std::string::npos)
      << refused.output;
}

class FewJobs : public Service {
 protected:
  static memserver::ServerOptions Options() {
    memserver::ServerOptions options = Service::Options();
    options.settings.times.lease_ns = 3600 * kNsPerSecond;
    options.settings.live.jobs_max = 4;
    options.settings.limits.user_jobs_max = 2;
    options.settings.limits.user_sessions_max = 8;
    return options;
  }
  FewJobs() : Service(Options()) {}
};

// Alice's trainers are killed again and again, and each leaves a job that is kept for hours.
TEST_F(FewJobs, OfOneUserThatAreKeptLeaveOthersTheirs) {
  setenv("TIDEPOOL_KILL_AT", "client.end_step_sent:3", 1);
  for (const char* name : {"one", "two"}) {
    const Ended killed = RunAs(kAlice, ThinCommand(daemon_.socket_dir(), {"--name", name}));
    EXPECT_EQ(killed.exit_code, Expected(-1)) << killed.output;
  }
  unsetenv("TIDEPOOL_KILL_AT");
  const Ended refused = RunAs(kAlice, ThinCommand(daemon_.socket_dir(), {"--name", "three"}));
  EXPECT_EQ(refused.exit_code, Expected(kExitRefused)) << refused.output;
  EXPECT_NE(refused.output.find(geteuid() == 0 ? "as many as one user may have" : ""),
            std::string::npos)
      << refused.output;
  const Ended bobs = RunAs(kBob, ThinCommand(daemon_.socket_dir(), {"--name", "bobs"}));
  EXPECT_EQ(bobs.exit_code, Expected(0)) << bobs.output;
}

// All whole numbers behind "key": in a text.
std::vector<int64_t> NumbersIn(const std::string& json, const std::string& key) {
  std::vector<int64_t> numbers;
  const std::string word = "\"" + key + "\":";
  for (size_t at = json.find(word); at != std::string::npos; at = json.find(word, at + 1)) {
    numbers.push_back(NumberIn(json.substr(at), key));
  }
  return numbers;
}

// Each answer shows one moment: what the jobs have adds up to what the pool lacks, and so do the
// accounts.
void ExpectSums(const std::string& socket_dir) {
  const auto sum = [](const std::vector<int64_t>& numbers) {
    return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
  };
  const std::string residency = AskAdmin(socket_dir, "/v1/residency");
  std::vector<int64_t> used =
      NumbersIn(residency, "bytes_used");  // of the pool, and of the row "host_pool" of each job
  ASSERT_FALSE(used.empty()) << residency;
  EXPECT_EQ(sum({used.begin() + 1, used.end()}), used.front()) << residency;
}

class SharedByUsers : public Service {
 protected:
  static memserver::ServerOptions Options() {
    memserver::ServerOptions options = Service::Options();
    options.settings.limits.user_sessions_max = 4;
    return options;
  }
  SharedByUsers() : Service(Options()) {}
};

TEST_F(SharedByUsers, FourJobsOfTwoUsersTrainTheBitsThatTheyTrainAloneAndTheSumsAreAlwaysRight) {
  const auto train = [this](const User& user, const std::string& name) {
    return RunAs(
        user, ThinCommand(daemon_.socket_dir(), {"--name", name, "--steps", "60", "--pause-ms", "2",
                                                 "--elements", "65536"}));
  };
  const Ended alone = train(kAlice, "alone");
  EXPECT_EQ(alone.exit_code, Expected(kExitOk)) << alone.output;
  std::array<Ended, 4> runs;
  std::atomic<int> running{4};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      runs[i] = train(i < 2 ? kAlice : kBob, "shares-" + std::to_string(i));
      --running;
    });
  }
  size_t most = 0;
  while (running > 0) {
    ExpectSums(daemon_.socket_dir());
    most = std::max(most, NumbersIn(AskAdmin(daemon_.socket_dir(), "/v1/jobs"), "uid").size());
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ended& run : runs) {
    EXPECT_EQ(run.exit_code, Expected(kExitOk)) << run.output;
    EXPECT_EQ(run.output, alone.output);
  }
  EXPECT_GE(most, geteuid() == 0 ? 2u : 0u) << "they were there at once";
  EXPECT_EQ(WaitForHoldings(daemon_.socket_dir(), kNothing, kPromptNs), kNothing);
}

// One user's connections run out for that user alone.
TEST_F(Service, AUserMayHaveSoManyConnectionsAndNoMore) {
  const std::string path = shm::DataSocketPath(daemon_.socket_dir());
  // How many of five connections are refused with a word; the others stay silent, as nobody has
  // greeted yet.
  const auto refused = [&path] {
    std::vector<UniqueFd> sockets;
    int count = 0;
    for (int i = 0; i < 5; ++i) {
      auto socket = shm::ConnectSocket(RealClock(), path, kPromptNs);
      if (!socket.ok()) return 100;
      if (shm::WaitForSocket(socket->get(), POLLIN, 200'000'000)) ++count;
      sockets.push_back(std::move(socket).value());
    }
    return count;
  };
  const int by_alice = DoAs(kAlice, [&] {
    const int own = refused();
    return own == 3 ? 0 : 1 + own;
  });
  EXPECT_EQ(by_alice, Expected(0)) << "two places for the connections of one session";
  EXPECT_EQ(refused(), 0) << "whoever runs memserver may have all";
}

// The same user cannot look into the daemon: it is not dumpable.
TEST(Isolation, NobodyOfTheSameUserReadsTheDaemonsMemory) {
  const TemporaryDirectory directory;
  const uint32_t owner = geteuid() == 0 ? kAlice.uid : geteuid();
  ASSERT_EQ(chown(directory.path().c_str(), owner, static_cast<gid_t>(-1)), 0);
  const UniqueFd program(open(TIDEPOOL_MEMSERVER, O_RDONLY | O_CLOEXEC));
  std::vector<std::string> command = MemserverCommand(directory.path(), {"--keeper", "none"});
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  const pid_t server = fork();
  if (server == 0) {
    if (geteuid() == 0 && !Become(kAlice)) _exit(kNotStarted);
    syscall(SYS_execveat, program.get(), "", words.data(), environ, AT_EMPTY_PATH);
    _exit(kNotStarted);
  }
  EXPECT_TRUE(WaitForHoldings(directory.path(), kNothing, 10 * kPromptNs) == kNothing);
  const std::string memory = "/proc/" + std::to_string(server) + "/mem",
                    links = "/proc/" + std::to_string(server) + "/fd/0";
  const auto look = [&] {
    if (open(memory.c_str(), O_RDONLY | O_CLOEXEC) >= 0) return 1;
    char text[16];
    return readlink(links.c_str(), text, sizeof text) >= 0 ? 2 : 0;
  };
  EXPECT_EQ(geteuid() == 0 ? DoAs(kAlice, look) : look(), 0);
  kill(server, SIGTERM);
  int status = 0;
  EXPECT_EQ(waitpid(server, &status, 0), server);
}

// The sockets of private mode are for one user, also where others know their names.
TEST(Isolation, APrivateServerIsReachedByNobodyElse) {
  DaemonInProcess daemon;
  EXPECT_EQ(
      RunAs(kAlice, ThinCommand(daemon.socket_dir(), {"--connect-timeout-ms", "100"})).exit_code,
      Expected(kExitNoServer));
  EXPECT_EQ(RunAs(kAlice, {TIDEPOOL_MEMCTL, "-s", daemon.socket_dir(), "status"}).exit_code,
            Expected(kExitRefused));
}

}  // namespace isolation_test
}  // namespace tidepool::testing

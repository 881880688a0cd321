#include "tests/process/rig/durable_daemon.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/clock.h"
#include "shm/socket_path.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {

namespace {

// Flags with values; those of `more` replace the others.
std::vector<std::string> WithDefaults(
    const std::vector<std::pair<std::string, std::string>>& defaults,
    const std::vector<std::string>& more) {
  std::vector<std::string> flags = more;
  for (const auto& [flag, value] : defaults) {
    if (std::find(more.begin(), more.end(), flag) == more.end())
      flags.insert(flags.end(), {flag, value});
  }
  return flags;
}

bool Lives(pid_t pid) {
  return std::ifstream("/proc/" + std::to_string(pid) + "/cmdline").peek() != EOF;
}

}  // namespace

Process DurableDaemon::Serve(const std::vector<std::string>& more,
                             const std::vector<std::string>& environment) const {
  return ServeBy(TIDEPOOL_MEMSERVER, more, environment);
}

Process DurableDaemon::ServeBy(const std::string& program, const std::vector<std::string>& more,
                               const std::vector<std::string>& environment) const {
  auto command = MemserverCommand(
      directory_.path(),
      WithDefaults({{"--keeper", "process"}, {"--lease", "20s"}, {"--pool", "8MiB"}}, more));
  command.front() = program;
  auto server = std::make_unique<ChildProcess>(command, environment);
  const bool ready = server->WaitForOutput("\"ready\"", kLimit);
  // One that is to be killed at a point may pass it as soon as its loop goes on with a job, before
  // it says that it is ready.
  const auto ended = server->Wait(0);
  EXPECT_TRUE(ready || (!environment.empty() && ended && ended->signal == SIGKILL))
      << server->Output();
  return server;
}

Process DurableDaemon::Train(const std::vector<std::string>& more,
                             const std::vector<std::string>& environment) const {
  return TrainBy(TIDEPOOL_THIN_TRAINER, more, environment);
}

Process DurableDaemon::TrainBy(const std::string& program, const std::vector<std::string>& more,
                               const std::vector<std::string>& environment) const {
  auto command = ThinCommand(directory_.path(), WithDefaults({{"--name", "job"},
                                                              {"--steps", "60"},
                                                              {"--pause-ms", "2"},
                                                              {"--server-timeout-ms", "60000"}},
                                                             more));
  command.front() = program;
  return std::make_unique<ChildProcess>(command, environment);
}

void DurableDaemon::HandOver(ChildProcess* server) {
  const SteadyClock clock;
  const int64_t begin = clock.NowNs();
  server->Signal(SIGTERM);
  const auto ended = server->Wait(kLimit);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->exit_code, 0) << server->Output();
  EXPECT_LT(clock.NowNs() - begin, kPromptNs) << "it drains at once";
}

std::vector<std::string> DurableDaemon::UndisturbedHashes(uint32_t world) {
  const DaemonInProcess daemon;
  std::vector<Process> ranks;
  for (uint32_t rank = 0; rank < world; ++rank) {
    const std::vector<std::string> flags{"--name",  "job",
                                         "--steps", "60",
                                         "--world", std::to_string(world),
                                         "--rank",  std::to_string(rank)};
    ranks.push_back(std::make_unique<ChildProcess>(ThinCommand(daemon.socket_dir(), flags)));
  }
  std::vector<std::string> hashes;
  for (const Process& rank : ranks) {
    const auto ended = rank->Wait(kLimit);
    EXPECT_TRUE(ended && ended->exit_code == 0) << rank->Output();
    hashes.push_back(HashIn(rank->Output()));
  }
  return hashes;
}

std::string DurableDaemon::HashIn(const std::string& output) {
  const size_t at = output.find("hash ");
  return at == std::string::npos ? "" : output.substr(at, output.find(' ', at + 5) - at);
}

void DurableDaemon::ExpectDone(ChildProcess* job, const std::string& hash) {
  const auto ended = job->Wait(kLimit);
  ASSERT_TRUE(ended.has_value()) << job->Output();
  EXPECT_EQ(ended->exit_code, 0) << job->Output();
  EXPECT_EQ(HashIn(job->Output()), hash);
}

std::string DurableDaemon::Memctl(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {TIDEPOOL_MEMCTL, "--socket-dir", directory_.path()});
  ChildProcess memctl(arguments);
  const auto ended = memctl.Wait(kLimit);
  EXPECT_TRUE(ended && ended->exit_code == 0) << memctl.Output();
  return memctl.Output();
}

pid_t DurableDaemon::ServerPid() const {
  std::ifstream lock(shm::LockFilePath(directory_.path()));
  pid_t pid = 0;
  lock >> pid;
  return pid;
}

bool DurableDaemon::WaitForFilesToGo() const {
  SteadyClock clock;
  const int64_t end = clock.NowNs() + kLimit;
  while (!std::filesystem::is_empty(directory_.path())) {
    if (clock.NowNs() > end) return false;
    clock.SleepNs(kNsPerMs);
  }
  return true;
}

void DurableDaemon::ExpectGone(pid_t pid) {
  SteadyClock clock;
  const int64_t end = clock.NowNs() + kLimit;
  while (Lives(pid) && clock.NowNs() < end) clock.SleepNs(kNsPerMs);
  EXPECT_FALSE(Lives(pid)) << "process " << pid << " lives";
}

void DurableDaemon::TearDown() {
  KillDaemon(directory_.path());
}

}  // namespace tidepool::testing

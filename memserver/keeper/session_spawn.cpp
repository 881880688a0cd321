#include "memserver/keeper/session_spawn.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/unique_fd.h"

namespace tidepool::memserver {

namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Owns the two parameter blocks of posix_spawn.
class SpawnPlan {
 public:
  explicit SpawnPlan(const SessionCommand& command) {
    posix_spawn_file_actions_init(&files_);
    posix_spawnattr_init(&attributes_);
    // Also clears close-on-exec if the two numbers are the same.
    if (command.inherited_fd >= 0)
      posix_spawn_file_actions_adddup2(&files_, command.inherited_fd, kInheritedFd);

    sigset_t all, blocked;
    sigfillset(&all);
    sigemptyset(&blocked);
    if (command.signals_blocked) {
      for (const int signal : {SIGINT, SIGHUP, SIGTERM}) sigaddset(&blocked, signal);
    }

    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setsigmask(&attributes_, &blocked);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  const posix_spawn_file_actions_t* files() const { return &files_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

}  // namespace

Result<pid_t> SpawnSession(const SessionCommand& command) {
  const SpawnPlan plan(command);
  const std::vector<char*> argv = Pointers(command.argv),
                           environment = Pointers(command.environment);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, command.program.c_str(), plan.files(), plan.attributes(),
                                 argv.data(), environment.data());
  if (error == 0) return pid;
  return Status(ErrorId::kKeeperFailed, "cannot start a program")
      .Where(command.program)
      .Why(std::strerror(error));
}

void IsolateProcess(const char* name, int kept_fd) {
  setsid();
  for (const int ignored : {SIGINT, SIGHUP, SIGPIPE}) std::signal(ignored, SIG_IGN);
  umask(S_IRWXG | S_IRWXO);
  fcntl(kept_fd, F_SETFD, FD_CLOEXEC);

  const auto kept = static_cast<unsigned>(kept_fd),
             first = static_cast<unsigned>(STDERR_FILENO) + 1;
  if (kept > first) close_range(first, kept - 1, 0);
  close_range(std::max(first, kept + 1), ~0U, 0);

  const UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing.valid()) dup2(nothing.get(), STDIN_FILENO);
  const UniqueFd score(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (score.valid() && write(score.get(), "-900", 4) != 4)
    LogDebug("the out-of-memory score stays as it is");

  prctl(PR_SET_NAME, name);
  prctl(PR_SET_DUMPABLE, 0);
}

std::vector<std::string> EnvironmentFor(bool again) {
  constexpr std::string_view kKillAt = "TIDEPOOL_KILL_AT=", kStopAt = "TIDEPOOL_STOP_AT=";
  const char* repeat = std::getenv("TIDEPOOL_KILL_AGAIN");
  const bool left_out = again && (repeat == nullptr || std::string_view(repeat) != "1");
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view variable(*each);
    if (!left_out || !(variable.starts_with(kKillAt) || variable.starts_with(kStopAt)))
      variables.emplace_back(variable);
  }
  return variables;
}

std::vector<std::string> OwnCommand() {
  std::vector<std::string> command;
  std::ifstream words("/proc/self/cmdline", std::ios::binary);
  for (std::string word; std::getline(words, word, '\0');) command.push_back(word);
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (command.empty() || length <= 0 || static_cast<size_t>(length) >= path.size()) return command;
  // A newer release was installed: its program has the old path.
  constexpr std::string_view kReplaced = " (deleted)";
  std::string_view program(path.data(), static_cast<size_t>(length));
  if (program.ends_with(kReplaced)) program.remove_suffix(kReplaced.size());
  command.front() = program;
  return command;
}

}  // namespace tidepool::memserver

#include "tests/process/rig/memserver_process.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "shm/socket_path.h"

namespace tidepool::testing {

namespace {

std::vector<std::string> OpenIn(pid_t pid, const std::string& socket_dir) {
  std::vector<std::string> kinds;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/" + std::to_string(pid) + "/fd", error), end;
       !error && it != end; it.increment(error)) {
    std::string kind = std::filesystem::read_symlink(it->path(), error).string();
    if (kind.starts_with("socket:")) kind = "socket";
    if (kind.starts_with("pipe:")) kind = "pipe";
    if (kind.starts_with(socket_dir)) kind.erase(0, socket_dir.size());
    if (!error) kinds.push_back(kind);
    error.clear();  // it was closed meanwhile
  }
  std::sort(kinds.begin(), kinds.end());
  return kinds;
}

OpenDescriptors DescriptorsOf(const std::string& socket_dir) {
  return {OpenIn(FindServer(socket_dir), socket_dir), OpenIn(FindKeeper(socket_dir), socket_dir)};
}

}  // namespace

std::string OpenDescriptors::Text() const {
  std::string text = "memserver:";
  for (const std::string& kind : of_server) text += " " + kind;
  text += "\nkeeper:";
  for (const std::string& kind : of_keeper) text += " " + kind;
  return text;
}

OpenDescriptors SettledDescriptorsOf(const std::string& socket_dir) {
  constexpr int kSameMin = 10;
  SteadyClock clock;
  OpenDescriptors before;
  for (int same = 0; same < kSameMin; ++same) {
    OpenDescriptors now = DescriptorsOf(socket_dir);
    if (now != before) same = 0;
    before = std::move(now);
    clock.SleepNs(5 * kNsPerMs);
  }
  return before;
}

OpenDescriptors WaitForDescriptors(const std::string& socket_dir, const OpenDescriptors& expected,
                                   int64_t timeout_ns) {
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + timeout_ns;
  for (;;) {
    OpenDescriptors now = DescriptorsOf(socket_dir);
    if (now == expected || clock.NowNs() > limit) return now;
    clock.SleepNs(2 * kNsPerMs);
  }
}

pid_t FindServer(const std::string& socket_dir) {
  pid_t pid = 0;
  std::ifstream(shm::LockFilePath(socket_dir)) >> pid;
  return pid;
}

std::vector<pid_t> ProcessesNaming(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; }))
      continue;
    std::ifstream file(entry.path() / "cmdline");
    std::string words;
    // Empty where the process has just ended (its buffer alone would throw)
    std::getline(file, words);
    if (words.find(text) != std::string::npos) found.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

pid_t FindKeeper(const std::string& socket_dir) {
  for (const pid_t pid : ProcessesNaming(socket_dir)) {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
    if (name == "tp-keeper") return pid;
  }
  return 0;
}

namespace {

bool IsOfDaemon(pid_t pid) {
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
  return name == "tp-keeper" || name.starts_with("memserver");
}

// A process has no words while it is executed; nor has one that has ended and is still listed.
bool IsBeingExecuted(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  if (!IsOfDaemon(pid) || std::ifstream(folder + "/cmdline").peek() != EOF) return false;
  std::string stat;
  std::getline(std::ifstream(folder + "/stat"), stat);
  const size_t state = stat.rfind(") ");
  return state != std::string::npos && stat[state + 2] != 'Z' && stat[state + 2] != 'X';
}

}  // namespace

// Whichever is left starts the other one again, and one that has just been started has written no
// lock file yet: all are stopped before any is killed. On a busy machine an execution takes longer
// than all looks here, so nobody may be in the middle of one at the last look.
void KillDaemon(const std::string& socket_dir) {
  std::set<pid_t> stopped;
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + 5 * kNsPerSecond;
  for (int unchanged = 0; unchanged < 4; ++unchanged) {
    if (unchanged > 0) clock.SleepNs(2 * kNsPerMs);
    const size_t before = stopped.size();
    const std::vector<pid_t> all = ProcessesNaming("");
    const bool executing = std::any_of(all.begin(), all.end(), IsBeingExecuted);
    for (const pid_t pid : ProcessesNaming(socket_dir)) {
      if (!IsOfDaemon(pid)) continue;
      kill(pid, SIGSTOP);
      stopped.insert(pid);
    }
    if (stopped.size() != before || (executing && clock.NowNs() < limit)) unchanged = -1;
  }
  for (const pid_t pid : stopped) kill(pid, SIGKILL);
}

std::vector<std::string> MemserverCommand(const std::string& socket_dir,
                                          const std::vector<std::string>& more) {
  std::vector<std::string> command{TIDEPOOL_MEMSERVER, "run", "--socket-dir", socket_dir};
  // A setting that `more` gives must not be given twice.
  for (const auto& [flag, value] :
       {std::pair{"--pool", "32MiB"}, std::pair{"--rcache-limit", "32MiB"},
        std::pair{"--lease", "0s"}, std::pair{"--update-prefetch", "512"},
        std::pair{"--adam-threads", "1"}, std::pair{"--huge", "off"}, std::pair{"--keeper", "none"},
        std::pair{"--measure-rates", "off"}}) {
    if (std::find(more.begin(), more.end(), flag) == more.end())
      command.insert(command.end(), {flag, value});
  }
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

MemserverProcess::MemserverProcess(const std::vector<std::string>& more)
    : process_(std::make_unique<ChildProcess>(MemserverCommand(directory_.path(), more))) {
  TP_CHECK(process_->WaitForOutput("\"message\":\"ready\"", 30 * kNsPerSecond),
           process_->Output().c_str());
}

bool MemserverProcess::StopsCleanly() {
  process_->Signal(SIGTERM);
  const auto end = process_->Wait(kPromptNs);
  return end && end->exit_code == 0 && std::filesystem::is_empty(directory_.path());
}

}  // namespace tidepool::testing

#include "bench/harness/server_process.h"

#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "bench/harness/row.h"

namespace tidepool::bench {

namespace fs = std::filesystem;

Result<ServerProcess> ServerProcess::Start(const std::vector<std::string>& flags) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path() / "memserver";
  std::string directory = (fs::temp_directory_path(error) / "tidepool-bench-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) {
    return Status(ErrorId::kFileWriteFailed,
                  "no temporary directory: " + std::string(std::strerror(errno)));
  }

  std::vector<std::string> words = {program.string(), "run",          "--socket-dir",
                                    directory,        "--parent-pid", std::to_string(getpid())};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  pid_t pid = -1;
  const int failed = posix_spawn(&pid, program.c_str(), nullptr, nullptr, pointers.data(), environ);
  if (failed != 0) {
    fs::remove_all(directory, error);
    return Status(ErrorId::kLibraryFailed,
                  "cannot start memserver: " + std::string(std::strerror(failed)))
        .Where(program.string())
        .Fix("build the target memserver into the same folder");
  }
  return ServerProcess(pid, directory);
}

ServerProcess::ServerProcess(ServerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), socket_dir_(std::move(other.socket_dir_)) {}

static std::string NameOf(const fs::directory_entry& task) {
  std::ifstream file(task.path() / "comm");
  std::string name;
  file >> name;
  return name;
}

// From the scheduler's account, in nanoseconds; the ticks of /proc/PID/stat are too coarse for an
// idle server.
double ServerProcess::CpuSeconds(std::string_view thread) const {
  double nanoseconds = 0;
  for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(pid_) + "/task")) {
    if (!thread.empty() && NameOf(task) != thread) continue;
    std::ifstream account(task.path() / "schedstat");
    double of_task = 0;
    if (account >> of_task) nanoseconds += of_task;
  }
  return nanoseconds * 1e-9;
}

void ServerProcess::PinLoop(int cpu) const {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(pid_) + "/task")) {
    if (NameOf(task) != kLoopThread) continue;
    if (sched_setaffinity(std::stoi(task.path().filename()), sizeof set, &set) == 0) return;
  }
  Die("memserver's serve loop cannot be pinned to CPU " + std::to_string(cpu));
}

ServerProcess::~ServerProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
  std::error_code error;
  fs::remove_all(socket_dir_, error);
}

}  // namespace tidepool::bench

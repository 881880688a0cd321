#include "trainer/launch/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/unique_fd.h"

namespace tidepool::trainer {
namespace {

bool Executable(const std::string& path) {
  std::error_code ignored;
  return access(path.c_str(), X_OK) == 0 && std::filesystem::is_regular_file(path, ignored);
}

std::string FindInPath(const std::string& name, std::string_view path) {
  while (!path.empty()) {
    const std::string_view folder = path.substr(0, path.find(':'));
    path.remove_prefix(std::min(path.size(), folder.size() + 1));
    std::string candidate = std::string(folder.empty() ? "." : folder) + "/" + name;
    if (Executable(candidate)) return candidate;
  }
  return "";
}

std::string PathOf(const Environment& environment) {
  const auto found = environment.find(std::string_view("PATH"));
  return found == environment.end() ? "/usr/local/bin:/usr/bin:/bin" : found->second;
}

// Everything the child needs after fork, prepared before it: a fork of a multithreaded process must
// not allocate.
struct Prepared {
  std::string program;
  std::vector<char*> argv, envp;
  std::vector<std::string> variables;
  int null_fd = -1, report_fd = -1;
  pid_t parent = 0;
};

Prepared Prepare(const ChildOptions& options) {
  Prepared prepared;
  prepared.program = options.program.find('/') == std::string::npos
                         ? FindInPath(options.program, PathOf(options.environment))
                         : options.program;

  prepared.argv.push_back(const_cast<char*>(options.program.c_str()));
  for (const std::string& argument : options.arguments)
    prepared.argv.push_back(const_cast<char*>(argument.c_str()));
  prepared.argv.push_back(nullptr);

  for (const auto& [name, value] : options.environment)
    prepared.variables.push_back(name + "=" + value);
  for (std::string& variable : prepared.variables) prepared.envp.push_back(variable.data());
  prepared.envp.push_back(nullptr);

  prepared.parent = getpid();
  return prepared;
}

// Only async-signal-safe calls from here to execve.
[[noreturn]] void BecomeProgram(const ChildOptions& options, const Prepared& prepared) {
  const auto fail = [&] {
    const int error = errno;
    [[maybe_unused]] const auto n = write(prepared.report_fd, &error, sizeof error);
    _exit(127);
  };

  if (options.own_session) {
    setsid();
  } else {
    setpgid(0, 0);
  }

  if (options.killed_with_parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != prepared.parent) _exit(127);  // the parent died before the line above
  }
  // Ignored and blocked signals survive execve; programs expect neither.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD})
    std::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  if (dup2(prepared.null_fd, STDIN_FILENO) < 0) fail();
  if (options.stdout_fd >= 0 && dup2(options.stdout_fd, STDOUT_FILENO) < 0) fail();
  if (options.stderr_fd >= 0 && dup2(options.stderr_fd, STDERR_FILENO) < 0) fail();
  for (const int fd : options.passed_fds) {
    if (fcntl(fd, F_SETFD, 0) != 0) fail();
  }

  execve(prepared.program.c_str(), prepared.argv.data(), prepared.envp.data());
  fail();
  _exit(127);
}

Status CannotStart(const ChildOptions& options, int error) {
  return Status(ErrorId::kFileUnreadable,
                "cannot start the program " + options.program + ": " + std::strerror(error))
      .Fix("check that the program exists and may be executed");
}

}  // namespace

Result<ChildProcess> ChildProcess::Start(const ChildOptions& options) {
  Prepared prepared = Prepare(options);
  if (prepared.program.empty()) return CannotStart(options, ENOENT);

  std::array<int, 2> pipe_fds{};
  if (pipe2(pipe_fds.data(), O_CLOEXEC) != 0)
    return Status(ErrorId::kInternal, std::string("pipe2: ") + std::strerror(errno));
  UniqueFd report_read(pipe_fds[0]), report_write(pipe_fds[1]);
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  prepared.null_fd = null.get();
  prepared.report_fd = report_write.get();

  const pid_t pid = fork();
  if (pid < 0)
    return Status(ErrorId::kInternal, std::string("fork: ") + std::strerror(errno))
        .Fix("check `ulimit -u`");
  if (pid == 0) BecomeProgram(options, prepared);
  report_write.Reset();
  // The pipe closes without data when execve has succeeded.
  int error = 0;
  ssize_t n = 0;
  do {
    n = read(report_read.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);

  ChildProcess child(pid);
  if (n == sizeof error) return CannotStart(options, error);
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), code_(other.code_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    End();
    pid_ = std::exchange(other.pid_, -1);
    code_ = other.code_;
  }
  return *this;
}

ChildProcess::~ChildProcess() {
  End();
}

void ChildProcess::End() {
  if (pid_ < 0 || TryWait()) return;
  Signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<int> ChildProcess::TryWait() {
  if (code_ || pid_ < 0) return code_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == pid_)
    code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return code_;
}

std::optional<int> ChildProcess::WaitFor(int64_t timeout_ns, Clock* clock) {
  constexpr int64_t kPollNs = 2 * kNsPerMs;
  const int64_t deadline_ns = clock->NowNs() + timeout_ns;
  while (!TryWait() && clock->NowNs() < deadline_ns) clock->SleepNs(kPollNs);
  return code_;
}

void ChildProcess::Signal(int signal) {
  // Not reaped yet, so the number still names our child (or its zombie), never another process.
  if (pid_ > 0 && !code_) kill(-pid_, signal);
}

Result<std::string> FindProgramBeside(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string beside = (self.parent_path() / name).string();
  if (!error && Executable(beside)) return beside;
  if (std::string found = FindInPath(name, PathOf(ReadEnvironment())); !found.empty()) return found;
  return Status(ErrorId::kFileUnreadable, "cannot find the program " + name)
      .Where(beside + ", and the folders of PATH")
      .Fix("build or install " + name + " beside this program, or add its folder to PATH");
}

}  // namespace tidepool::trainer

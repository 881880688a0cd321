#include "tests/process/rig/child_process.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "base/check.h"
#include "base/clock.h"
#include "base/text/error_text.h"
#include "shm/socket_path.h"

namespace tidepool::testing {

namespace {

constexpr int64_t kLookEveryNs = kNsPerMs;

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

bool Become(const OtherUser& user) {
  return setgroups(user.groups.size(), user.groups.data()) == 0 &&
         setresgid(user.uid, user.uid, user.uid) == 0 &&
         setresuid(user.uid, user.uid, user.uid) == 0;
}

// Undoes FoldText below the parts of an error and below lines of a log.
std::string Unfolded(const std::string& text) {
  const std::string further = "\n" + std::string(kFoldIndent, ' ');
  std::string whole;
  bool is_error = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    const bool goes_on = is_error && line.size() > kFoldIndent && line[kFoldIndent] != ' ' &&
                         line.starts_with(std::string_view(further).substr(1));
    if (goes_on) {
      whole.back() = ' ';
      whole += line.substr(kFoldIndent);
    } else {
      whole += line;
      is_error = line.starts_with("error[TP") || line.starts_with("   where: ") ||
                 line.starts_with("   why:   ") || line.starts_with("   fix:   ") ||
                 line.find("Z ") == 12;
    }
    if (end < text.size()) whole += '\n';
    at = end + 1;
  }
  return whole;
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = "/tmp/tidepool-test-XXXXXX";
  TP_CHECK(mkdtemp(pattern.data()) != nullptr, "a directory for a test");
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

ChildProcess::ChildProcess(const std::vector<std::string>& command,
                           const std::vector<std::string>& environment,
                           const std::vector<int>& keep_fds, const std::optional<OtherUser>& user)
    : output_(memfd_create("child-output", MFD_CLOEXEC)) {
  TP_CHECK(output_.valid(), "memory for the output of a child");
  std::vector<std::string> words = command, variables = environment;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  std::vector<char*> argv = Pointers(&words), envp = Pointers(&variables);
  const UniqueFd program(open(argv[0], O_RDONLY | O_CLOEXEC));
  // Only calls that are safe after a fork of a process with threads stand between fork and exec.
  pid_ = fork();
  TP_CHECK(pid_ >= 0, "fork");
  if (pid_ > 0) return;
  dup2(output_.get(), STDOUT_FILENO);
  dup2(output_.get(), STDERR_FILENO);
  fcntl(STDOUT_FILENO, F_SETFL, O_APPEND);
  // Also what the test itself has inherited.
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  for (const int fd : keep_fds) fcntl(fd, F_SETFD, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!user) execve(argv[0], argv.data(), envp.data());
  if (user && Become(*user))
    syscall(SYS_execveat, program.get(), "", argv.data(), envp.data(), AT_EMPTY_PATH);
  _exit(127);
}

ChildProcess::~ChildProcess() {
  if (end_) return;
  Signal(SIGKILL);
  Wait(10 * kNsPerSecond);
}

void ChildProcess::Signal(int signal) const {
  if (!end_) kill(pid_, signal);
}

std::optional<ProcessEnd> ChildProcess::Wait(int64_t timeout_ns) {
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + timeout_ns;
  while (!end_) {
    int state = 0;
    if (waitpid(pid_, &state, WNOHANG) == pid_) {
      end_ =
          WIFSIGNALED(state) ? ProcessEnd{-1, WTERMSIG(state)} : ProcessEnd{WEXITSTATUS(state), 0};
    } else if (clock.NowNs() > limit) {
      return std::nullopt;
    } else {
      clock.SleepNs(kLookEveryNs);
    }
  }
  return end_;
}

std::string ChildProcess::Output() const {
  std::string text;
  std::array<char, 4096> piece{};
  for (off_t at = 0;;) {
    const ssize_t count = pread(output_.get(), piece.data(), piece.size(), at);
    if (count <= 0) return Unfolded(text);
    text.append(piece.data(), static_cast<size_t>(count));
    at += count;
  }
}

bool ChildProcess::WaitForOutput(const std::string& text, int64_t timeout_ns) {
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + timeout_ns;
  while (Output().find(text) == std::string::npos) {
    if (Wait(0) || clock.NowNs() > limit) return Output().find(text) != std::string::npos;
    clock.SleepNs(kLookEveryNs);
  }
  return true;
}

std::string AskAdmin(const std::string& socket_dir, const std::string& path) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{5, 0};  // a server that does not answer must not hold up the test
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = shm::AdminSocketPath(socket_dir);
  std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return {};
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
  if (send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    return {};
  std::string answer;
  std::array<char, 4096> piece{};
  for (ssize_t count = 0; (count = read(socket.get(), piece.data(), piece.size())) > 0;)
    answer.append(piece.data(), static_cast<size_t>(count));
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? std::string() : answer.substr(body + 4);
}

int64_t NumberIn(const std::string& json, const std::string& key) {
  const size_t at = json.find("\"" + key + "\":");
  return at == std::string::npos ? -1
                                 : std::strtoll(json.c_str() + at + key.size() + 3, nullptr, 10);
}

}  // namespace tidepool::testing

// KeeperTest: a keeper in a forked child, a directory of its own, and memory with known contents.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "memserver/keeper/keeper.h"
#include "memserver/keeper/keeper_link.h"
#include "shm/fd_socket.h"
#include "shm/socket_path.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::testing {

inline constexpr uint64_t kLongLeaseMs = 60'000;

inline UniqueFd MakeMemory(const std::string& contents) {
  UniqueFd fd(memfd_create("kept", MFD_CLOEXEC));
  EXPECT_EQ(write(fd.get(), contents.data(), contents.size()),
            static_cast<ssize_t>(contents.size()));
  return fd;
}

inline std::string ContentsOf(int fd) {
  std::string text(4096, '\0');
  const ssize_t length = pread(fd, text.data(), text.size(), 0);
  text.resize(length < 0 ? 0 : static_cast<size_t>(length));
  return text;
}

inline std::string FileText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline size_t LinesIn(const std::string& path) {
  const std::string text = FileText(path);
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// Looks every millisecond.
template <typename Condition>
bool Eventually(Condition condition, int64_t timeout_ns = 20 * kNsPerSecond) {
  SteadyClock clock;
  const int64_t end = clock.NowNs() + timeout_ns;
  while (!condition()) {
    if (clock.NowNs() > end) return false;
    clock.SleepNs(kNsPerMs);
  }
  return true;
}

class KeeperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/tidepool-keeper-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    socket_path_ = shm::KeeperSocketPath(directory_);
  }
  void TearDown() override {
    if (keeper_ > 0) kill(keeper_, SIGKILL);
    if (keeper_ > 0) waitpid(keeper_, nullptr, 0);
    std::ifstream started(File("pids"));  // of shells that a keeper started
    for (pid_t pid = 0; started >> pid;) kill(pid, SIGKILL);
    std::filesystem::remove_all(directory_);
  }

  std::string File(const std::string& name) const { return directory_ + "/" + name; }

  // A keeper whose log goes to `log_fd`, or to the file "log". `files_max` bounds its descriptors.
  void StartKeeper(memserver::KeeperOptions options, rlim_t files_max = 0, int log_fd = -1) {
    auto listener = shm::ListenSocket(socket_path_);
    ASSERT_TRUE(listener.ok()) << listener.status().Format();
    keeper_ = fork();
    ASSERT_GE(keeper_, 0);
    if (keeper_ > 0) return;
    const int log =
        log_fd >= 0 ? log_fd : open(File("log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    const rlimit limit{files_max, files_max};
    if (files_max > 0) setrlimit(RLIMIT_NOFILE, &limit);
    options.listen_fd = listener.value().Release();
    _exit(memserver::RunKeeper(options));
  }

  std::unique_ptr<memserver::KeeperLink> Connect() {
    auto link = memserver::KeeperLink::Connect(RealClock(), socket_path_);
    EXPECT_TRUE(link.ok()) << link.status().Format() << FileText(File("log"));
    return link.ok() ? std::move(link).value() : nullptr;
  }

  // A connection below the rules of KeeperLink, past the greeting.
  UniqueFd RawConnection() {
    auto socket = shm::ConnectSocket(RealClock(), socket_path_, kNsPerSecond);
    EXPECT_TRUE(socket.ok()) << socket.status().Format();
    if (!socket.ok()) return UniqueFd();
    shm::Packet hello;
    EXPECT_TRUE(shm::WaitForSocket(socket.value().get(), POLLIN, 5 * kNsPerSecond));
    EXPECT_EQ(shm::ReceivePacket(socket.value().get(), 1, &hello), shm::SocketResult::kDone);
    return std::move(socket).value();
  }

  // -1 while it runs, else its exit code, 1000 + N when signal N ended it.
  int KeeperEnd(int64_t timeout_ns) {
    int state = 0;
    if (!Eventually([&] { return waitpid(keeper_, &state, WNOHANG) == keeper_; }, timeout_ns))
      return -1;
    keeper_ = 0;
    return WIFSIGNALED(state) ? 1000 + WTERMSIG(state) : WEXITSTATUS(state);
  }
  bool KeeperLives() const { return waitpid(keeper_, nullptr, WNOHANG) == 0; }
  bool SocketIsThere() const { return std::filesystem::exists(socket_path_); }
  bool Logged(const std::string& text) const {
    return FileText(File("log")).find(text) != std::string::npos;
  }

  std::string directory_, socket_path_;
  pid_t keeper_ = 0;
};

// A process of its own for a body that dies, or that changes its environment. Returns how it ended,
// as KeeperEnd does.
template <typename Body>
int InChild(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int state = 0;
  waitpid(child, &state, 0);
  return WIFSIGNALED(state) ? 1000 + WTERMSIG(state) : WEXITSTATUS(state);
}

}  // namespace tidepool::testing

#include "trainer/launch/standalone_server.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/units.h"
#include "trainer/launch/stop_flag.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kDataSocket = "/data.sock";
constexpr const char* kLongestName = "/memserver.lock";

// Waits for the server and removes the directory, whatever happens to this process. The shell's own
// signals are deferred until the server has ended; a command as trap (rather than an ignored
// signal) leaves the server's signals at their default.
constexpr const char* kGuardScript =
    R"(dir=$1; shift; trap : HUP INT TERM; "$@"; code=$?; rm -rf -- "$dir"; exit $code)";

// Our ends of the pipes. A forked child (such as a data loader's worker) would keep the server
// alive after this process has died, so it closes them, but keeps their numbers occupied.
constexpr int kNone = -1;
constexpr size_t kServersMax = 64;  // per process; further ends stay open in forks
std::array<std::atomic<int>, kServersMax> ends_of_pipes;

void GiveUpInFork() {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const std::atomic<int>& end : ends_of_pipes) {
    if (end.load() != kNone) dup3(null, end.load(), O_CLOEXEC);
  }
  close(null);
}

void NotInForks(int end) {
  static const bool watched = [] {
    for (std::atomic<int>& free : ends_of_pipes) free.store(kNone);
    return pthread_atfork(nullptr, nullptr, &GiveUpInFork) == 0;
  }();

  if (!watched) return;
  for (std::atomic<int>& place : ends_of_pipes) {
    int free = kNone;
    if (place.compare_exchange_strong(free, end)) return;
  }
}

void AgainInForks(int end) {
  for (std::atomic<int>& place : ends_of_pipes) {
    int held = end;
    if (end != kNone && place.compare_exchange_strong(held, kNone)) return;
  }
}

bool FitsSocketAddress(const std::string& directory) {
  return directory.size() + std::strlen(kLongestName) < sizeof(sockaddr_un{}.sun_path);
}

}  // namespace

int64_t ReadyTimeoutNs(const StandaloneOptions& options) {
  if (options.ready_timeout_ns != 0) return options.ready_timeout_ns;
  return (30 + 2 * static_cast<int64_t>(options.pool_bytes / kGiB)) * kNsPerSecond;
}

Result<std::unique_ptr<StandaloneServer>> StandaloneServer::Start(const StandaloneOptions& options,
                                                                  Clock* clock) {
  std::unique_ptr<StandaloneServer> server(new StandaloneServer(options, clock));
  if (options.program.empty()) {
    TP_ASSIGN_OR_RETURN(server->options_.program, FindProgramBeside("memserver"));
  }
  TP_RETURN_IF_ERROR(server->MakeDirectory());
  TP_RETURN_IF_ERROR(server->Launch());
  TP_RETURN_IF_ERROR(server->WaitUntilReady());
  return server;
}

StandaloneServer::~StandaloneServer() {
  [[maybe_unused]] const Status status = Stop();
}

Status StandaloneServer::MakeDirectory() {
  const char* named = std::getenv("TMPDIR");
  std::string path =
      std::string(named != nullptr && named[0] == '/' ? named : "/tmp") + "/tidepool-XXXXXX";
  if (!FitsSocketAddress(path)) path = "/tmp/tidepool-XXXXXX";

  if (mkdtemp(path.data()) == nullptr) {
    return Status(ErrorId::kSocketFailed,
                  std::string("cannot make a private directory: ") + std::strerror(errno))
        .Where(path)
        .Fix("set TMPDIR to a directory where you may write");
  }
  directory_ = path;
  return {};
}

Status StandaloneServer::Launch() {
  const std::string log_path = directory_ + "/memserver.log";
  log_ = UniqueFd(open(log_path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  std::array<int, 2> fds{};
  if (!log_.valid() || pipe2(fds.data(), O_CLOEXEC) != 0) {
    return Status(ErrorId::kSocketFailed,
                  std::string("cannot prepare the private memserver: ") + std::strerror(errno))
        .Where(log_path);
  }

  const UniqueFd server_end(fds[0]);
  life_ = UniqueFd(fds[1]);
  NotInForks(life_.get());

  ChildOptions child;
  child.program = "/bin/sh";
  child.arguments = {"-c",  kGuardScript,   "memserver-guard", directory_, options_.program,
                     "run", "--socket-dir", directory_};
  child.arguments.insert(child.arguments.end(), {"--pool", std::to_string(options_.pool_bytes)});
  child.arguments.insert(child.arguments.end(),
                         {"--rcache-limit", std::to_string(options_.rcache_limit_bytes)});
  child.arguments.insert(child.arguments.end(),
                         {"--end-with-fd", std::to_string(server_end.get())});
  // The log is read by people, if at all.
  child.arguments.insert(child.arguments.end(), {"--log-format", "text"});
  child.arguments.insert(child.arguments.end(), options_.extra_flags.begin(),
                         options_.extra_flags.end());

  child.environment = ReadEnvironment();
  child.stdout_fd = child.stderr_fd = log_.get();
  child.passed_fds = {server_end.get()};
  child.own_session = true;
  TP_ASSIGN_OR_RETURN(process_, ChildProcess::Start(child));
  return {};
}

Status StandaloneServer::WaitUntilReady() {
  constexpr int64_t kPollNs = 10 * kNsPerMs;
  const int64_t timeout_ns = ReadyTimeoutNs(options_);
  const int64_t deadline_ns = clock_->NowNs() + timeout_ns;

  while (!Accepts()) {
    if (const std::optional<int> code = process_->TryWait()) {
      return NotReady("the private memserver ended with exit code " + std::to_string(*code) +
                      " before it was ready");
    }

    if (StopFlag::Requested())
      return NotReady("stopped by a signal before the private memserver was ready");
    if (clock_->NowNs() >= deadline_ns) {
      return NotReady("the private memserver was not ready within " + FormatNs(timeout_ns));
    }

    clock_->SleepNs(kPollNs);
  }
  return {};
}

bool StandaloneServer::Accepts() const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory_ + kDataSocket;
  std::copy_n(path.c_str(), std::min(path.size() + 1, sizeof address.sun_path), address.sun_path);
  const UniqueFd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

Status StandaloneServer::NotReady(const std::string& what) const {
  const std::string tail = LogTail();
  return Status(ErrorId::kNoServer, what)
      .Where(options_.program + " run --pool " + FormatBytes(options_.pool_bytes))
      .Why(tail.empty() ? "its log is empty" : "the end of its log:\n" + tail)
      .Fix("the log says why; a server started by hand (`memserver run`) works too");
}

std::string StandaloneServer::LogTail(size_t lines) const {
  constexpr off_t kTailMax = 64 * 1024;
  struct stat file {};
  if (!log_.valid() || fstat(log_.get(), &file) != 0) return "";
  const off_t start = std::max<off_t>(0, file.st_size - kTailMax);
  std::string text(static_cast<size_t>(file.st_size - start), '\0');
  const ssize_t n = pread(log_.get(), text.data(), text.size(), start);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);

  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t from = text.size();
  for (; lines > 0 && from > 0; --lines) {
    const size_t newline = text.rfind('\n', from - 1);
    if (newline == std::string::npos) return text;
    from = newline;
  }
  return from == text.size() ? "" : text.substr(from + 1);
}

Status StandaloneServer::Stop() {
  if (stopped_) return *stopped_;
  stopped_ = Status();
  std::optional<int> code = 0;
  bool died = false;

  if (process_) {
    died = process_->TryWait().has_value();
    process_->Signal(SIGTERM);
    AgainInForks(life_.get());
    life_.Reset();
    code = process_->WaitFor(options_.stop_timeout_ns, clock_);
    process_.reset();  // kills what still runs, including the guard
  }

  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
  if (code && *code == 0 && !died) return *stopped_;

  std::string what = "the private memserver had to be killed";
  if (code)
    what = std::string("the private memserver ") + (died ? "died during the run" : "ended badly") +
           ", exit code " + std::to_string(*code);
  stopped_ = Status(ErrorId::kServerGone, what).Why("the end of its log:\n" + LogTail());
  return *stopped_;
}

}  // namespace tidepool::trainer

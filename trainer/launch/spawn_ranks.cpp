#include "trainer/launch/spawn_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include "base/log.h"
#include "base/planted.h"
#include "base/unique_fd.h"
#include "trainer/launch/child_process.h"
#include "trainer/launch/done_marks.h"
#include "trainer/launch/line_prefixer.h"
#include "trainer/launch/rank_roll.h"

namespace tidepool::trainer {
namespace {

constexpr int kSignalled = 128;  // exit codes from here: 128 + the signal

Status SystemRefused(const char* call) {
  return Status(ErrorId::kInternal, std::string(call) + ": " + std::strerror(errno));
}

void WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // our reader is gone; the ranks' work does not need it
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// One output stream of a rank, forwarded to ours.
struct Stream {
  UniqueFd from;
  int to = -1;
  LinePrefixer prefixer;

  // Forwards available data; closes at the end of the stream.
  void Pump() {
    std::array<char, 16 * 1024> buffer;
    while (from.valid()) {
      const ssize_t n = read(from.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;

      if (n > 0) {
        WriteAll(to, prefixer.Feed({buffer.data(), static_cast<size_t>(n)}));
      } else {
        Finish();
      }
    }
  }
  void Finish() {
    WriteAll(to, prefixer.Flush());
    from.Reset();
  }
};

// Blocks the launcher's signals and reads them from a descriptor; restores the former mask on
// destruction.
class SignalQueue {
 public:
  SignalQueue() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, &former_);
    fd_ = UniqueFd(signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~SignalQueue() {
    while (Next()) {
    }
    pthread_sigmask(SIG_SETMASK, &former_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  std::optional<int> Next() {
    signalfd_siginfo event{};
    if (read(fd_.get(), &event, sizeof event) != sizeof event) return std::nullopt;
    return static_cast<int>(event.ssi_signo);
  }

 private:
  sigset_t set_, former_;
  UniqueFd fd_;
};

class RankGroup {
 public:
  RankGroup(const SpawnOptions& options, const Clock* clock) : options_(options), clock_(clock) {}

  Status Start() {
    environment_ = ReadEnvironment();
    std::erase_if(environment_,
                  [](const auto& variable) { return variable.first.starts_with("TORCHELASTIC_"); });
    environment_.erase("MASTER_ADDR");
    environment_.erase("MASTER_PORT");

    environment_["WORLD_SIZE"] = environment_["LOCAL_WORLD_SIZE"] = std::to_string(options_.ranks);
    environment_["GROUP_RANK"] = "0";
    environment_["TIDEPOOL_LAUNCH_ID"] =
        "launch-" + std::to_string(WallSeconds()) + "-" + std::to_string(getpid());

    TP_ASSIGN_OR_RETURN(done_, DoneMarks::Make(options_.ranks));
    environment_["TIDEPOOL_LAUNCH_DONE"] = done_->path();
    TP_ASSIGN_OR_RETURN(roll_, RankRoll::Make(options_.ranks));
    environment_["TIDEPOOL_LAUNCH_ROLL"] = roll_->path();

    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      TP_ASSIGN_OR_RETURN(ChildProcess process, StartRank(rank));
      ranks_.push_back({std::move(process), false});
    }
    return {};
  }

  int RunToEnd() {
    while (CollectEnded() < ranks_.size()) {
      Wait();
      while (const std::optional<int> signal = signals_.Next()) {
        if (*signal != SIGCHLD) TellAll(*signal);
      }
      if (kill_at_ns_ && clock_->NowNs() >= *kill_at_ns_) KillRest();
    }
    // A rank's last output is still in its pipes; a process that it left behind may keep them open,
    // so do not wait for their end.
    for (Stream& stream : streams_) {
      stream.Pump();
      if (stream.from.valid()) stream.Finish();
    }
    return first_bad_code_.value_or(0);
  }

 private:
  Result<ChildProcess> StartRank(uint32_t rank) {
    environment_["RANK"] = environment_["LOCAL_RANK"] = std::to_string(rank);

    ChildOptions child;
    child.program = options_.program;
    child.arguments = options_.arguments;
    child.environment = environment_;
    child.killed_with_parent = true;

    std::array<UniqueFd, 2> theirs;
    if (rank > 0) {
      TP_ASSIGN_OR_RETURN(theirs[0], OpenStream(rank, STDOUT_FILENO));
      TP_ASSIGN_OR_RETURN(theirs[1], OpenStream(rank, STDERR_FILENO));
      child.stdout_fd = theirs[0].get();
      child.stderr_fd = theirs[1].get();
    }

    TP_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(child));
    roll_->NoteStart(rank, process.pid());
    return process;
  }

  // Returns the write end, for the rank.
  Result<UniqueFd> OpenStream(uint32_t rank, int to) {
    std::array<int, 2> fds{};
    if (pipe2(fds.data(), O_CLOEXEC) != 0) return SystemRefused("pipe2");
    UniqueFd ours(fds[0]), theirs(fds[1]);
    if (fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0) return SystemRefused("fcntl");
    streams_.push_back({std::move(ours), to, LinePrefixer("[rank " + std::to_string(rank) + "] ")});
    return theirs;
  }

  void Wait() {
    std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}};
    // Poll skips closed ones (-1).
    for (const Stream& stream : streams_) polled.push_back({stream.from.get(), POLLIN, 0});
    int timeout_ms = -1;
    if (kill_at_ns_)
      timeout_ms =
          static_cast<int>(std::max<int64_t>(0, *kill_at_ns_ - clock_->NowNs()) / kNsPerMs) + 1;
    if (poll(polled.data(), polled.size(), timeout_ms) <= 0) return;
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (polled[i + 1].revents != 0) streams_[i].Pump();
    }
  }

  // Number of ranks that have ended.
  size_t CollectEnded() {
    size_t ended = 0;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      std::optional<int> code = ranks_[rank].process.TryWait();
      if (code && KilledWhenDone(rank, *code)) code = 0;
      if (!code || (!ranks_[rank].collected && GoesOn(rank, *code))) continue;
      ++ended;
      if (!std::exchange(ranks_[rank].collected, true) && *code != 0) EndedBadly(rank, *code);
    }
    return ended;
  }

  // Call when a rank's process has ended. False: it is not restarted. Other ranks may read the roll
  // at any time, so it never names a process that is gone, and never reports the end of a rank that
  // is then restarted.
  bool GoesOn(uint32_t rank, int code) {
    roll_->NoteDeath(rank);
    if (StartedAgain(rank, code)) return true;
    if (!TP_PLANTED("launch.end_unwritten")) roll_->NoteEnd(rank, code);
    return false;
  }

  // True for a rank that was killed during its goodbye, after all work of the run was done.
  bool KilledWhenDone(uint32_t rank, int code) const {
    const bool was_asked = told_to_stop_ || code == kSignalled + SIGINT ||
                           code == kSignalled + SIGTERM || code == kSignalled + SIGHUP;
    return code >= kSignalled && !was_asked && done_->IsSet(rank);
  }

  // A rank that died may rejoin the others as long as the run goes on.
  bool StartedAgain(uint32_t rank, int code) {
    const bool died = code == kExitFailed || code >= kSignalled;
    if (!died || told_to_stop_ || restarts_ == options_.max_restarts) return false;
    ++restarts_;
    LogWarn("a rank died; starting it again", {{"rank", rank},
                                               {"exit_code", code},
                                               {"restart", restarts_},
                                               {"of", options_.max_restarts}});

    Result<ChildProcess> process = StartRank(rank);
    if (!process.ok()) {
      LogError("the rank cannot be started again",
               {{"rank", rank}, {"why", process.status().Line()}});
      return false;
    }
    ranks_[rank].process = std::move(process).value();
    return true;
  }

  void EndedBadly(uint32_t rank, int code) {
    if (first_bad_code_) return;
    first_bad_code_ = code;
    if (!told_to_stop_) {
      LogError("a rank ended badly; ending the others", {{"rank", rank}, {"exit_code", code}});
      TellAll(SIGTERM);
    }
    // Signal only once: a second signal would cut short a rank that is cleaning up.
    kill_at_ns_ = clock_->NowNs() + options_.grace_ns;
  }

  void TellAll(int signal) {
    told_to_stop_ = true;
    for (Rank& rank : ranks_) rank.process.Signal(signal);
  }

  void KillRest() {
    LogWarn("ranks that did not end in time are killed");
    TellAll(SIGKILL);
    kill_at_ns_.reset();
  }

  struct Rank {
    ChildProcess process;
    bool collected;
  };

  const SpawnOptions& options_;
  const Clock* const clock_;
  Environment environment_;  // of the last rank started
  SignalQueue signals_;
  std::optional<DoneMarks> done_;
  std::optional<RankRoll> roll_;
  std::vector<Rank> ranks_;
  std::vector<Stream> streams_;
  bool told_to_stop_ = false;
  uint32_t restarts_ = 0;
  std::optional<int> first_bad_code_;
  std::optional<int64_t> kill_at_ns_;
};

}  // namespace

Result<int> SpawnRanks(const SpawnOptions& options, const Clock* clock) {
  if (options.ranks == 0)
    return Status(ErrorId::kUsageError, "there must be at least one rank")
        .Where("trainer launch -n 0");
  RankGroup group(options, clock);
  TP_RETURN_IF_ERROR(group.Start());  // ranks already started end with the group
  return group.RunToEnd();
}

}  // namespace tidepool::trainer

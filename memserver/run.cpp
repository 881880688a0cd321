#include "memserver/run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/system/last_words.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "memserver/admin/admin_api.h"
#include "memserver/keeper/sd_notify.h"
#include "memserver/keeper/session_spawn.h"
#include "memserver/ready_line.h"
#include "memserver/reload.h"
#include "memserver/server.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {
namespace {

constexpr int64_t kProgressNs = kNsPerSecond;  // between two lines while the pool is touched

// SIGTERM, SIGINT and SIGHUP arrive as reads of this descriptor instead of interrupting; every
// later thread inherits the mask.
UniqueFd TakeSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file over its limit is an error of the call that made it so
  return UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

struct TakenSignal {
  int number = 0;  // 0: none
  AdminCaller sender;
};
TakenSignal TakeSignal(int signals) {
  signalfd_siginfo info{};
  if (read(signals, &info, sizeof info) != sizeof info) return {};
  return {static_cast<int>(info.ssi_signo),
          {.uid = info.ssi_uid,
           .pid = static_cast<int32_t>(info.ssi_pid),
           .level = AdminLevel::kAdmin}};
}

// Memory of jobs must not show in core dumps, and the out-of-memory killer should look elsewhere
// first.
void HardenProcess() {
  umask(S_IRWXG | S_IRWXO);
  const UniqueFd score(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (score.valid() && write(score.get(), "-500", 4) != 4)
    LogDebug("the out-of-memory score stays as it is");
  prctl(PR_SET_DUMPABLE, 0);
}

// What ends the server besides signals: the parent's death (its pidfd), and a pipe.
struct EndConditions {
  UniqueFd parent;
  UniqueFd pipe;
};

Result<EndConditions> WatchParent(const RunOptions& options) {
  EndConditions conditions;
  if (options.parent_pid != 0) {
    conditions.parent = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, options.parent_pid, 0)));
    if (!conditions.parent.valid()) {
      return Status(ErrorId::kUsageError,
                    "there is no process " + std::to_string(options.parent_pid))
          .Where("--parent-pid");
    }
  }
  if (options.end_with_fd >= 0) {
    conditions.pipe = UniqueFd(fcntl(options.end_with_fd, F_DUPFD_CLOEXEC, 0));
    if (!conditions.pipe.valid()) {
      return Status(ErrorId::kUsageError,
                    "descriptor " + std::to_string(options.end_with_fd) + " is not open")
          .Where("--end-with-fd");
    }
    close(options.end_with_fd);
  }
  return conditions;
}

// Reports the progress of touching the pool. A signal in this phase ends the process immediately:
// nothing is served yet, only the lock file exists. (All but SIGHUP, whose sender is to send it
// again: the configuration was read just now.)
class TouchProgress {
 public:
  TouchProgress(int signals, std::string socket_dir, KeptHolder* keeper)
      : signals_(signals),
        socket_dir_(std::move(socket_dir)),
        keeper_(keeper),
        terminal_(isatty(STDERR_FILENO) != 0) {}

  void operator()(uint64_t touched, uint64_t total) {
    const int taken = TakeSignal(signals_).number;
    if (taken == SIGHUP)
      LogWarn("the configuration is not read again while memserver starts",
              {{"next", "SIGHUP once more, later"}});
    if (taken != 0 && taken != SIGHUP) {
      keeper_->End();
      unlink(shm::LockFilePath(socket_dir_).c_str());
      EndBehindLog(kExitOk);
    }
    const bool done = touched >= total;
    const int64_t now = clock_.NowNs();
    if (!done && now - last_ns_ < (terminal_ ? kProgressNs / 10 : kProgressNs)) return;
    last_ns_ = now;
    const std::string text = "touching pool " + FormatBytes(touched) + " / " + FormatBytes(total);
    NotifyIfRoom("STATUS=" + text);
    if (!terminal_) return LogInfo(text);
    const std::string line = "\r" + text + (done ? "   \n" : "   ");
    SayOnStderr(line, 0);  // a terminal that is halted misses a line
  }

 private:
  int signals_;
  std::string socket_dir_;
  KeptHolder* keeper_;
  bool terminal_;
  SteadyClock clock_;
  int64_t last_ns_ = 0;
};

void RemoveFiles(const std::string& socket_dir) {
  for (const std::string& path : {shm::DataSocketPath(socket_dir), shm::AdminSocketPath(socket_dir),
                                  shm::LockFilePath(socket_dir)})
    unlink(path.c_str());
}

// SIGTERM stands for a restart where somebody holds the memory: jobs stay there for the next
// server. Ctrl-C ends them.
void BeginStop(Server* server, const std::string& cause, bool hand_over) {
  LogInfo("stopping",
          {{"cause", cause}, {"jobs", hand_over ? "stay for the next memserver" : "end"}});
  NotifyIfRoom("STOPPING=1");
  server->Stop(hand_over);
}

// Does what an admin asks for, as for a signal; true when the stop has begun.
bool StopsAsAsked(Server* server, const KeptHolder& keeper, const MainCommand& asked) {
  const bool hand_over = asked.what == MainCommand::What::kHandOver;
  const std::string who =
      "uid " + std::to_string(asked.caller.uid) + ", pid " + std::to_string(asked.caller.pid);
  if (hand_over && !keeper.Holds()) {
    asked.ticket->Answer(
        Status(ErrorId::kNotReady,
               "nobody holds the memory of the jobs, so that none of them would outlive memserver")
            .Fix("end the jobs too, where that is meant: keep=false"));
    return false;
  }
  asked.ticket->Answer(Status());
  BeginStop(server, "asked for by an admin (" + who + ")", hand_over);
  return true;
}

// Starts another keeper when one has died, and tries again for as long as that fails.
class KeeperCare {
 public:
  KeeperCare(Server* server, KeptHolder* keeper) : server_(server), keeper_(keeper) {}
  int pause_ms() const { return next_ns_ == 0 ? -1 : static_cast<int>(kPauseNs / kNsPerMs); }
  void Renew(bool died) {
    if (!died && (next_ns_ == 0 || clock_.NowNs() < next_ns_)) return;
    const Status renewed = keeper_->Renew(server_->kept_parts());
    if (!renewed.ok() && next_ns_ == 0) {
      LogError(
          "the keeper died and no new one could be started: until one is, the jobs do not outlive "
          "this process",
          {{"why", renewed.Line()}, {"next", "it is tried once a second"}});
    }
    next_ns_ = renewed.ok() ? 0 : clock_.NowNs() + kPauseNs;
  }

 private:
  static constexpr int64_t kPauseNs = kNsPerSecond;
  Server* server_;
  KeptHolder* keeper_;
  SteadyClock clock_;
  int64_t next_ns_ = 0;  // 0: memory is held
};

// Reports to the service manager that this process lives, for as long as its serve loop answers.
class Watchdog {
 public:
  int pause_ms() const {
    return interval_ns_ == 0 ? -1 : static_cast<int>(interval_ns_ / 3 / kNsPerMs);
  }
  void Feed(Server* server) {
    if (interval_ns_ == 0 || clock_.NowNs() - fed_ns_ < interval_ns_ / 3) return;
    if (server->SilentSeconds() < AdminApi::kDeadSeconds) NotifyIfRoom("WATCHDOG=1");
    fed_ns_ = clock_.NowNs();
  }

 private:
  SteadyClock clock_;
  const int64_t interval_ns_ = WatchdogNs();
  int64_t fed_ns_ = 0;
};

// A terminal that goes away ends what was started on it; SIGHUP from anybody else means that the
// configuration is to be read again.
class Terminal {
 public:
  bool HasGone() const { return was_there_ && isatty(STDERR_FILENO) == 0; }

 private:
  const bool was_there_ = isatty(STDERR_FILENO) != 0;
};

// The shorter of two pauses in milliseconds; -1 is for ever.
int ShorterPause(int a, int b) {
  return a < 0 || b < 0 ? std::max(a, b) : std::min(a, b);
}

// Returns when the loop has ended, or at the second signal. True when the jobs are to stay, for
// which any moment is early enough.
bool WaitForEnd(Server* server, KeptHolder* keeper, Reloader* reloader, int signals,
                const EndConditions& conditions) {
  bool stopping = false, hand_over = false;
  const Terminal terminal;
  Watchdog watchdog;
  KeeperCare care(server, keeper);
  for (;;) {
    watchdog.Feed(server);
    // Negative descriptors are ignored by poll; the parent is watched only until the stop begins.
    std::array<pollfd, 9> entries{{{signals, POLLIN, 0},
                                   {server->ended_fd(), POLLIN, 0},
                                   {server->snapshot_fd(), POLLIN, 0},
                                   {stopping ? -1 : conditions.parent.get(), POLLIN, 0},
                                   {stopping ? -1 : conditions.pipe.get(), 0, 0},
                                   {stopping ? -1 : keeper->watch_fd(), POLLIN, 0},
                                   {server->main_commands_fd(), POLLIN, 0},
                                   {server->keeps_fd(), POLLIN, 0},
                                   {server->former_servers_fd(), POLLIN, 0}}};
    if (poll(entries.data(), entries.size(), ShorterPause(watchdog.pause_ms(), care.pause_ms())) <
        0)
      continue;
    if (entries[1].revents != 0) return hand_over;
    if (entries[2].revents != 0) server->PublishSnapshots();
    if (!stopping) care.Renew(entries[5].revents != 0);
    if (entries[7].revents != 0) server->KeepStatesAsAsked(keeper);
    if (entries[8].revents != 0) server->TendFormerServers();
    if (entries[6].revents != 0) {
      for (const MainCommand& asked : server->TakeMainCommands()) {
        if (stopping) {
          asked.ticket->Answer(Status(ErrorId::kNotReady, "memserver is stopping already"));
        } else if (asked.what == MainCommand::What::kReload ||
                   asked.what == MainCommand::What::kPlanReload) {
          reloader->Do(server, asked);
        } else {
          stopping = StopsAsAsked(server, *keeper, asked);
          hand_over = stopping && asked.what == MainCommand::What::kHandOver;
        }
      }
    }
    const TakenSignal taken = entries[0].revents != 0 ? TakeSignal(signals) : TakenSignal{};
    if (taken.number == SIGHUP && !terminal.HasGone()) {
      if (!stopping) reloader->Do(server, {taken.sender, std::make_shared<CommandTicket>()});
      continue;
    }
    if (taken.number != 0 && stopping) return hand_over;
    if (taken.number != 0) {
      hand_over = taken.number == SIGTERM && keeper->Holds();
      BeginStop(server, strsignal(taken.number), hand_over);
      stopping = true;
    } else if (entries[3].revents != 0 || entries[4].revents != 0) {
      BeginStop(server, "the process that started this server has ended", false);
      stopping = true;
    }
  }
}

// Leaves the jobs to the holder of their memory and ends this process. Taking down gigabytes of
// mappings in order would only keep the ranks waiting.
[[noreturn]] void LeaveJobs(const Server& server, KeptHolder* keeper, const std::string& socket_dir,
                            int64_t lease_ns) {
  const Status held = keeper->Part(static_cast<uint64_t>(lease_ns / kNsPerMs), server.kept_parts());
  RemoveFiles(socket_dir);
  if (!held.ok()) {
    LogError("stopped; nobody holds the memory of the jobs, and they end with this process",
             {{"why", held.Line()}});
    EndBehindLog(kExitFailed);
  }
  LogInfo("stopped; the jobs stay with the keeper", {{"for", FormatNs(lease_ns)}});
  EndBehindLog(kExitOk);
}

// A private server ends with whoever started it, and its memory too.
KeeperChoice KeeperOf(const Config& config, const RunOptions& options) {
  const bool is_private = options.parent_pid != 0 || options.end_with_fd >= 0;
  const KeeperChoice kind = config.keeper.kind;
  return kind == KeeperChoice::kAuto && is_private ? KeeperChoice::kNone : kind;
}

KeeperStart KeeperStartOf(const Config& config, const std::string& socket_dir) {
  KeeperStart start;
  start.socket_path = shm::KeeperSocketPath(socket_dir);
  start.argv = OwnCommand();
  std::erase_if(start.argv, [](const std::string& word) {
    return word == "--discard-kept" || word.starts_with("--discard-kept=");
  });
  start.no_respawn = !config.keeper.respawn;
  start.lease_ms = static_cast<uint64_t>(config.times.lease_ns / kNsPerMs);
  start.log_level = config.live.log_level;
  start.log_format = config.log_format;
  return start;
}

}  // namespace

Status RunServer(const LoadedConfig& loaded, const ConfigSources& sources,
                 const RunOptions& options) {
  const Config& config = loaded.config;
  const UniqueFd signals = TakeSignals();
  if (!signals.valid()) return Status(ErrorId::kInternal, "no descriptor for signals");
  StartLogThread();  // which has the signals blocked, too
  HardenProcess();
  TP_ASSIGN_OR_RETURN(const EndConditions conditions, WatchParent(options));
  TP_ASSIGN_OR_RETURN(ServerOptions server_options, ResolveOptions(config));
  server_options.discard_kept = options.discard_kept;
  server_options.config = RowsOf(loaded);
  KeptHolder keeper(KeeperOf(config, options),
                    KeeperStartOf(config, server_options.settings.socket_dir));
  server_options.progress =
      TouchProgress(signals.get(), server_options.settings.socket_dir, &keeper);
  TP_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(server_options, &keeper));
  LogReady(server_options, *server, keeper);
  Reloader reloader(sources, loaded);
  const bool hand_over = WaitForEnd(server.get(), &keeper, &reloader, signals.get(), conditions);
  pollfd ended{server->ended_fd(), POLLIN, 0};
  if (poll(&ended, 1, 0) == 0) {
    LogWarn("second signal: ending at once");
    if (hand_over)
      LeaveJobs(*server, &keeper, server_options.settings.socket_dir, config.times.lease_ns);
    keeper.End();
    RemoveFiles(server_options.settings.socket_dir);
    EndBehindLog(kExitFailed);
  }
  if (server->HandedOver()) {
    server->EndThreads();
    LeaveJobs(*server, &keeper, server_options.settings.socket_dir, config.times.lease_ns);
  }
  server.reset();
  keeper.End();
  prctl(PR_SET_DUMPABLE, 1);  // the pool is gone, so leak checkers may look now
  LogInfo("stopped");
  return Status();
}

}  // namespace tidepool::memserver

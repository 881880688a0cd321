#include "memserver/run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/system/last_words.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "memserver/keeper/sd_notify.h"
#include "memserver/keeper/session_spawn.h"
#include "memserver/ready_line.h"
#include "memserver/main_loop.h"
#include "memserver/probe/rates_process.h"
#include "memserver/rates_care.h"
#include "memserver/reload.h"
#include "memserver/server.h"
#include "memserver/signals.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {
namespace {

constexpr int64_t kProgressNs = kNsPerSecond;  // interval of log lines while the pool is touched

// Keeps jobs' memory out of core dumps, and makes the process a late choice of the out-of-memory
// killer.
void HardenProcess() {
  umask(S_IRWXG | S_IRWXO);
  const UniqueFd score(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (score.valid() && write(score.get(), "-500", 4) != 4)
    LogDebug("the out-of-memory score stays as it is");
  prctl(PR_SET_DUMPABLE, 0);
}

// Reports the progress of touching the pool. A signal in this phase ends the process immediately:
// nothing is served yet, only the lock file exists. (Except SIGHUP, which its sender must repeat:
// the configuration has just been read.)
class TouchProgress {
 public:
  TouchProgress(int signals, std::string socket_dir, KeptHolder* keeper, const Clock* clock)
      : signals_(signals),
        socket_dir_(std::move(socket_dir)),
        keeper_(keeper),
        clock_(clock),
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
    const int64_t now = clock_->NowNs();
    if (done_ || (!done && now - last_ns_ < (terminal_ ? kProgressNs / 10 : kProgressNs))) return;
    last_ns_ = now;
    done_ = done;

    const std::string text = "touching pool " + FormatBytes(touched) + " / " + FormatBytes(total);
    NotifyIfRoom("STATUS=" + text);
    if (!terminal_)
      return LogInfo("touching pool", {{"touched", LogBytes{touched}}, {"all", LogBytes{total}}});
    const std::string line = "\r" + text + (done ? "   \n" : "   ");
    SayOnStderr(line, 0);  // a suspended terminal misses a line
  }

 private:
  int signals_;
  std::string socket_dir_;
  KeptHolder* keeper_;
  const Clock* clock_;
  bool terminal_;
  int64_t last_ns_ = 0;
  bool done_ = false;  // its last line is out
};

void RemoveFiles(const std::string& socket_dir) {
  for (const std::string& path : {shm::DataSocketPath(socket_dir), shm::AdminSocketPath(socket_dir),
                                  shm::LockFilePath(socket_dir)})
    unlink(path.c_str());
}

// Leaves the jobs to the holder of their memory and ends this process. Unmapping gigabytes in order
// would only keep the ranks waiting.
[[noreturn]] void LeaveJobs(const Server& server, KeptHolder* keeper, const std::string& socket_dir,
                            int64_t lease_ns) {
  const Status held = keeper->Part(static_cast<uint64_t>(lease_ns / kNsPerMs), server.kept_parts());
  RemoveFiles(socket_dir);
  if (!held.ok()) {
    LogError("stopped; nobody holds the memory of the jobs, and they end with this process",
             {{"why", held.Line()}});
    EndBehindLog(kExitFailed);
  }

  LogInfo("stopped; the jobs stay with the keeper",
          {{"lease", LogSeconds{static_cast<double>(lease_ns) / 1e9}}});
  EndBehindLog(kExitOk);
}

// True if a single run has started this server for itself.
bool IsPrivate(const RunOptions& options) {
  return options.parent_pid != 0 || options.end_with_fd >= 0;
}

// A private server and its memory end with the process that started it.
KeeperChoice KeeperOf(const Config& config, const RunOptions& options) {
  const KeeperChoice kind = config.keeper.kind;
  return kind == KeeperChoice::kAuto && IsPrivate(options) ? KeeperChoice::kNone : kind;
}

RatesMeasurer MeasurerOf(RatesProcess* process) {
  return {.start = [process] { return process->Start(); },
          .ended = [process] { return process->Ended(); },
          .stop = [process] { process->Stop(); }};
}

KeeperStart KeeperStartOf(const Config& config, const std::string& socket_dir, Clock* clock) {
  KeeperStart start;
  start.clock = clock;
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
                 const RunOptions& options, Clock* clock) {
  const Config& config = loaded.config;
  const UniqueFd signals = TakeSignals();
  if (!signals.valid()) return Status(ErrorId::kInternal, "no descriptor for signals");
  StartLogThread();  // it inherits the blocked signals
  HardenProcess();
  TP_ASSIGN_OR_RETURN(const EndConditions conditions,
                      WatchParent(options.parent_pid, options.end_with_fd));

  TP_ASSIGN_OR_RETURN(ServerOptions server_options, ResolveOptions(config, clock));
  const std::string& socket_dir = server_options.settings.socket_dir;
  server_options.discard_kept = options.discard_kept;
  server_options.config = RowsOf(loaded);
  KeptHolder keeper(KeeperOf(config, options), KeeperStartOf(config, socket_dir, clock));
  server_options.progress = TouchProgress(signals.get(), socket_dir, &keeper, clock);
  TP_ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
                      Server::Start(server_options, &keeper, clock));
  LogReady(server_options, *server, keeper);

  Reloader reloader(sources, loaded);
  RatesProcess process({.file = shm::RatesPath(socket_dir),
                        .workers = server_options.settings.optimizer.threads,
                        .gpus = config.gpu.use != GpuUse::kNone});
  RatesCare rates(MeasurerOf(&process),
                  config.measure_rates && !IsPrivate(options) && !server->adopted(), clock);

  MainLoop loop(server.get(), &keeper, &reloader, &rates, clock);
  const bool hand_over = loop.Run(signals.get(), conditions);
  pollfd ended{server->ended_fd(), POLLIN, 0};
  if (poll(&ended, 1, 0) == 0) {
    LogWarn("second signal: ending at once");
    if (hand_over) LeaveJobs(*server, &keeper, socket_dir, config.times.lease_ns);
    keeper.End();
    RemoveFiles(socket_dir);
    EndBehindLog(kExitFailed);
  }

  if (server->HandedOver()) {
    server->EndThreads();
    LeaveJobs(*server, &keeper, socket_dir, config.times.lease_ns);
  }
  server.reset();
  keeper.End();
  prctl(PR_SET_DUMPABLE, 1);  // the pool is gone, so leak checkers may attach now
  LogInfo("stopped");
  return Status();
}

}  // namespace tidepool::memserver

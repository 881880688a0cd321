#include "memserver/main_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>

#include "base/log.h"
#include "memserver/admin/snapshot_source.h"
#include "memserver/server.h"

namespace tidepool::memserver {
namespace {

// A terminal that closes ends the programs started on it; SIGHUP from any other sender means that
// the configuration is to be reloaded.
class Terminal {
 public:
  bool HasGone() const { return was_there_ && isatty(STDERR_FILENO) == 0; }

 private:
  const bool was_there_ = isatty(STDERR_FILENO) != 0;
};

// The shorter of two pauses in milliseconds; -1 means for ever.
int ShorterPause(int a, int b) {
  return a < 0 || b < 0 ? std::max(a, b) : std::min(a, b);
}

}  // namespace

Result<EndConditions> WatchParent(int pid, int pipe_fd) {
  EndConditions conditions;
  if (pid != 0) {
    conditions.parent = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!conditions.parent.valid()) {
      return Status(ErrorId::kUsageError, "there is no process " + std::to_string(pid))
          .Where("--parent-pid");
    }
  }

  if (pipe_fd >= 0) {
    conditions.pipe = UniqueFd(fcntl(pipe_fd, F_DUPFD_CLOEXEC, 0));
    if (!conditions.pipe.valid()) {
      return Status(ErrorId::kUsageError, "descriptor " + std::to_string(pipe_fd) + " is not open")
          .Where("--end-with-fd");
    }
    close(pipe_fd);
  }
  return conditions;
}

void KeeperCare::Renew(bool died) {
  if (!died && (next_ns_ == 0 || clock_->NowNs() < next_ns_)) return;
  const Status renewed = keeper_->Renew(server_->kept_parts());
  if (!renewed.ok() && next_ns_ == 0) {
    LogError(
        "the keeper died and no new one could be started: until one is, the jobs do not outlive "
        "this process",
        {{"why", renewed.Line()}, {"next", "it is tried once a second"}});
  }
  next_ns_ = renewed.ok() ? 0 : clock_->NowNs() + kPauseNs;
}

void Watchdog::Feed(Server* server) {
  if (interval_ns_ == 0 || clock_->NowNs() - fed_ns_ < interval_ns_ / 3) return;
  if (server->SilentSeconds() < kDeadSeconds) NotifyIfRoom("WATCHDOG=1");
  fed_ns_ = clock_->NowNs();
}

MainLoop::MainLoop(Server* server, KeptHolder* keeper, Reloader* reloader, RatesCare* rates,
                   const Clock* clock)
    : server_(server),
      keeper_(keeper),
      reloader_(reloader),
      rates_(rates),
      watchdog_(clock),
      care_(server, keeper, clock) {}

bool MainLoop::Run(int signals, const EndConditions& conditions) {
  const Terminal terminal;
  for (;;) {
    watchdog_.Feed(server_);
    if (!rates_->done()) rates_->Look(stopping_ || server_->MayHaveJobs());
    Entries entries = EntriesOf(signals, conditions);
    const int pause_ms =
        ShorterPause(ShorterPause(watchdog_.pause_ms(), care_.pause_ms()), rates_->pause_ms());
    if (poll(entries.data(), entries.size(), pause_ms) < 0) continue;
    if (entries[kEnded].revents != 0) return hand_over_;
    Serve(entries);

    const TakenSignal taken = entries[kSignals].revents != 0 ? TakeSignal(signals) : TakenSignal{};
    if (taken.number == SIGHUP && !terminal.HasGone()) {
      if (!stopping_) reloader_->Do(server_, {taken.sender, std::make_shared<CommandTicket>()});
      continue;
    }
    if (taken.number != 0 && stopping_) return hand_over_;

    // SIGTERM means a restart if a keeper holds the memory: jobs stay there for the next server.
    // Ctrl-C ends them.
    if (taken.number != 0) {
      BeginStop(strsignal(taken.number), taken.number == SIGTERM && keeper_->Holds());
    } else if (!stopping_ && (entries[kParent].revents != 0 || entries[kPipe].revents != 0)) {
      BeginStop("the process that started this server has ended", false);
    }
  }
}

// poll ignores negative descriptors; the parent is watched only until the stop begins.
MainLoop::Entries MainLoop::EntriesOf(int signals, const EndConditions& conditions) const {
  Entries entries{};
  entries[kSignals] = {signals, POLLIN, 0};
  entries[kEnded] = {server_->ended_fd(), POLLIN, 0};
  entries[kSnapshot] = {server_->snapshot_fd(), POLLIN, 0};
  entries[kParent] = {stopping_ ? -1 : conditions.parent.get(), POLLIN, 0};
  entries[kPipe] = {stopping_ ? -1 : conditions.pipe.get(), 0, 0};
  entries[kKeeper] = {stopping_ ? -1 : keeper_->watch_fd(), POLLIN, 0};
  entries[kCommands] = {server_->main_commands_fd(), POLLIN, 0};
  entries[kKeeps] = {server_->keeps_fd(), POLLIN, 0};
  entries[kFormerServers] = {server_->former_servers_fd(), POLLIN, 0};

  return entries;
}

void MainLoop::Serve(const Entries& entries) {
  if (entries[kSnapshot].revents != 0) server_->PublishSnapshots();
  if (!stopping_) care_.Renew(entries[kKeeper].revents != 0);
  if (entries[kKeeps].revents != 0) server_->KeepStatesAsAsked(keeper_);
  if (entries[kFormerServers].revents != 0) server_->PollFormerServers();
  if (entries[kCommands].revents == 0) return;
  for (const MainCommand& asked : server_->TakeMainCommands()) Obey(asked);
}

void MainLoop::Obey(const MainCommand& asked) {
  using What = MainCommand::What;
  if (stopping_) {
    asked.ticket->Answer(Status(ErrorId::kNotReady, "memserver is stopping already"));
  } else if (asked.what == What::kReload || asked.what == What::kPlanReload) {
    reloader_->Do(server_, asked);
  } else {
    StopAsAsked(asked);
  }
}

void MainLoop::StopAsAsked(const MainCommand& asked) {
  const bool hand_over = asked.what == MainCommand::What::kHandOver;
  const std::string who =
      "uid " + std::to_string(asked.caller.uid) + ", pid " + std::to_string(asked.caller.pid);
  if (hand_over && !keeper_->Holds()) {
    asked.ticket->Answer(
        Status(ErrorId::kNotReady,
               "nobody holds the memory of the jobs, so that none of them would outlive memserver")
            .Fix("end the jobs too, where that is meant: keep=false"));
    return;
  }

  asked.ticket->Answer(Status());
  BeginStop("asked for by an admin (" + who + ")", hand_over);
}

void MainLoop::BeginStop(const std::string& cause, bool hand_over) {
  stopping_ = true;
  hand_over_ = hand_over;
  LogInfo("stopping", {{"cause", cause}, {"jobs_stay", hand_over}});
  NotifyIfRoom("STOPPING=1");
  server_->Stop(hand_over);
}

}  // namespace tidepool::memserver

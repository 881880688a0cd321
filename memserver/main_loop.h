// MainLoop: memserver's main thread while the server runs: signals, admin commands, the keeper and
// the watchdog, until the server has ended.
//
// One thread. All neighbours outlive it.
#pragma once

#include <sys/poll.h>

#include <array>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/control/mailbox.h"
#include "memserver/keeper/kept_holder.h"
#include "memserver/keeper/sd_notify.h"
#include "memserver/rates_care.h"
#include "memserver/reload.h"
#include "memserver/signals.h"

namespace tidepool::memserver {

class Server;

// The events that end the server, besides signals.
struct EndConditions {
  UniqueFd parent;  // a pidfd: the process that started this one
  UniqueFd pipe;
};
// `pid` 0 and `pipe_fd` -1: none; takes ownership of the pipe. Errors: kUsageError (no such process
// or descriptor).
Result<EndConditions> WatchParent(int pid, int pipe_fd);

// Starts another keeper when one has died, and retries until that succeeds.
class KeeperCare {
 public:
  KeeperCare(Server* server, KeptHolder* keeper, const Clock* clock)
      : server_(server), keeper_(keeper), clock_(clock) {}
  // Milliseconds until Renew is to be called again; -1: never.
  int pause_ms() const { return next_ns_ == 0 ? -1 : static_cast<int>(kPauseNs / kNsPerMs); }
  // `died`: the keeper has just died.
  void Renew(bool died);

 private:
  static constexpr int64_t kPauseNs = kNsPerSecond;
  Server* const server_;
  KeptHolder* const keeper_;
  const Clock* const clock_;
  int64_t next_ns_ = 0;  // 0: memory is held
};

// Reports to the service manager that this process lives, as long as its serve loop answers.
class Watchdog {
 public:
  explicit Watchdog(const Clock* clock) : clock_(clock) {}
  // Milliseconds until Feed is to be called again; -1: no watchdog.
  int pause_ms() const {
    return interval_ns_ == 0 ? -1 : static_cast<int>(interval_ns_ / 3 / kNsPerMs);
  }
  void Feed(Server* server);

 private:
  const Clock* const clock_;
  const int64_t interval_ns_ = WatchdogNs();
  int64_t fed_ns_ = 0;
};

class MainLoop {
 public:
  MainLoop(Server* server, KeptHolder* keeper, Reloader* reloader, RatesCare* rates,
           const Clock* clock);
  // Returns when the serve loop has ended, or at the second signal. True if the jobs are to stay:
  // their memory can be left at any moment.
  bool Run(int signals, const EndConditions& conditions);

 private:
  // The descriptors that the loop polls.
  enum Slot : size_t {
    kSignals,
    kEnded,
    kSnapshot,
    kParent,
    kPipe,
    kKeeper,
    kCommands,
    kKeeps,
    kFormerServers,
    kSlots
  };
  using Entries = std::array<pollfd, kSlots>;

  Entries EntriesOf(int signals, const EndConditions& conditions) const;
  // Handles the requests of other threads and the keeper.
  void Serve(const Entries& entries);
  void Obey(const MainCommand& asked);
  // Ends the server on an admin's request, if the jobs can stay when they are to.
  void StopAsAsked(const MainCommand& asked);
  void BeginStop(const std::string& cause, bool hand_over);

  Server* const server_;
  KeptHolder* const keeper_;
  Reloader* const reloader_;
  RatesCare* const rates_;
  Watchdog watchdog_;
  KeeperCare care_;
  bool stopping_ = false;
  bool hand_over_ = false;  // jobs stay in kept memory for the next server
};

}  // namespace tidepool::memserver

// MainLoop: what memserver's main thread does while the server runs: signals, commands of admins,
// the keeper and the watchdog, until the server has ended.
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

// What ends the server besides signals.
struct EndConditions {
  UniqueFd parent;  // a pidfd: the process that started this one
  UniqueFd pipe;
};
// `pid` 0 and `pipe_fd` -1: none; the latter is closed. Errors: kUsageError (no such process or
// descriptor).
Result<EndConditions> WatchParent(int pid, int pipe_fd);

// Starts another keeper when one has died, and tries again for as long as that fails.
class KeeperCare {
 public:
  KeeperCare(Server* server, KeptHolder* keeper, const Clock* clock)
      : server_(server), keeper_(keeper), clock_(clock) {}
  // Milliseconds until Renew is to be called again; -1: never.
  int pause_ms() const { return next_ns_ == 0 ? -1 : static_cast<int>(kPauseNs / kNsPerMs); }
  // `died`: the keeper has just gone.
  void Renew(bool died);

 private:
  static constexpr int64_t kPauseNs = kNsPerSecond;
  Server* const server_;
  KeptHolder* const keeper_;
  const Clock* const clock_;
  int64_t next_ns_ = 0;  // 0: memory is held
};

// Reports to the service manager that this process lives, for as long as its serve loop answers.
class Watchdog {
 public:
  explicit Watchdog(const Clock* clock) : clock_(clock) {}
  // Milliseconds until Feed is to be called again; -1: nobody watches.
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
  // Returns when the serve loop has ended, or at the second signal. True when the jobs are to stay,
  // for which any moment is early enough.
  bool Run(int signals, const EndConditions& conditions);

 private:
  // Descriptors that the loop waits for.
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
  // Hands on what other threads and the keeper have asked the main thread for.
  void Serve(const Entries& entries);
  void Obey(const MainCommand& asked);
  // Ends the server as an admin asks, where the jobs can stay if they are to.
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

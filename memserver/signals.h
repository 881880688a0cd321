// Signals of the daemon, read from a descriptor instead of interrupting.
//
// The main thread, before any other thread exists: later threads inherit the mask.
#pragma once

#include "base/unique_fd.h"
#include "memserver/control/command_ticket.h"

namespace tidepool::memserver {

// A signal and its sender.
struct TakenSignal {
  int number = 0;  // 0: none
  AdminCaller sender;
};

// Readable when SIGTERM, SIGINT or SIGHUP has come. Invalid: the system has no descriptor left.
UniqueFd TakeSignals();
// The next pending signal; does not block.
TakenSignal TakeSignal(int signals);

}  // namespace tidepool::memserver

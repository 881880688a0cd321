// Signals of the daemon, as reads of a descriptor instead of interruptions.
//
// The main thread, before any other thread exists: later threads inherit the mask.
#pragma once

#include "base/unique_fd.h"
#include "memserver/control/command_ticket.h"

namespace tidepool::memserver {

// A signal, and who sent it.
struct TakenSignal {
  int number = 0;  // 0: none
  AdminCaller sender;
};

// Readable when SIGTERM, SIGINT or SIGHUP has come. Not valid: the system has no descriptor.
UniqueFd TakeSignals();
// The next one that has come; does not block.
TakenSignal TakeSignal(int signals);

}  // namespace tidepool::memserver

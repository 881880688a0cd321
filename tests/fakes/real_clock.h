// RealClock: the machine's time, for a test that is about real processes, threads or sockets.
//
// Any thread.
#pragma once

#include "base/clock.h"

namespace tidepool {

inline Clock* RealClock() {
  static SteadyClock clock;
  return &clock;
}

}  // namespace tidepool

// WakeSet: the descriptors whose readiness ends the serve loop's sleep.
//
// One thread (the serve loop). A descriptor that is shared with a client is watched edge-triggered
// and never read, because a client could make the read block, or drain it. It must be removed
// before it is closed, or the client's copy would keep waking the loop.
#pragma once

#include <cstdint>

#include "base/unique_fd.h"

namespace tidepool::memserver {

class WakeSet {
 public:
  WakeSet();
  // Adds a descriptor that is readable until its owner clears it. False: the system has no room to
  // watch it, and Wait does not see it.
  [[nodiscard]] bool Add(int fd);
  // Adds a descriptor that is shared with a client: each write wakes once. False as above.
  [[nodiscard]] bool AddShared(int fd);
  void Remove(int fd);
  // Returns when a descriptor is ready, a signal came, or the time has passed. True when only
  // shared ones were ready: the others have reported nothing since they were cleared.
  bool Wait(int64_t timeout_ns);

 private:
  UniqueFd epoll_;
};

}  // namespace tidepool::memserver

// WakeSet: the descriptors whose readiness ends the serve loop's sleep.
//
// One thread (the serve loop). A descriptor that is shared with a client is watched edge-triggered
// and never read, because a client could make the read block, or drain it; it must be removed
// before it is closed, or the client's copy would go on waking the loop.
#pragma once

#include <cstdint>

#include "base/unique_fd.h"

namespace tidepool::memserver {

class WakeSet {
 public:
  WakeSet();
  // Readable until its owner clears it. False: the system has no room to watch it; Wait does not
  // see it.
  [[nodiscard]] bool Add(int fd);
  // Shared with a client: wakes once a write. False as above.
  [[nodiscard]] bool AddShared(int fd);
  void Remove(int fd);
  // Returns when a descriptor is ready, a signal came, or the time has passed. True when shared
  // ones alone were ready: the others have told nothing since they were cleared.
  bool Wait(int64_t timeout_ns);

 private:
  UniqueFd epoll_;
};

}  // namespace tidepool::memserver

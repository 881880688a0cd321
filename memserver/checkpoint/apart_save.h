// ApartSave: one save on a thread of its own, with descriptors of its own: the user's file system may keep it for ever, and holds up nobody
// but the saves that wait for its deadline.
//
// The thread that touches the user's files has a table of descriptors with nothing else in it. One that never comes back from the kernel is
// left alone: a memserver that is killed meanwhile lets go of its sockets and locks all the same, and the next one starts. One thread at a
// time makes, runs and destroys an ApartSave.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/checkpoint/save_request.h"

namespace tidepool::memserver {

struct ApartSaveLimits {
  const Clock* clock = nullptr;  // of the deadline within the save; used by its thread
  int64_t timeout_ns = 0;
  int64_t grace_ns = 0;                     // behind it, or behind `stop`, for a call to come back from the kernel
  const std::atomic<bool>* stop = nullptr;  // the daemon ends
};

// Writes the file of `request`; what the request reads elsewhere is read on this thread. Errors: as of WriteWeightsFile; kSaveFailed too
// when the file system did not come back, and when there is no thread or descriptor for it.
Status SaveApart(SaveRequest request, const ApartSaveLimits& limits);

}  // namespace tidepool::memserver

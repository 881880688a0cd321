// ApartSave: one save on a thread with a descriptor table of its own. A user's file system that
// never answers delays only the caller, and only until the deadline.
//
// The thread that accesses the user's files has a descriptor table with nothing else in it, and
// never reads the planes: the caller reads them for it, piece by piece, into a buffer that belongs
// to the save. A thread that never returns from the kernel is left alone. A memserver that is
// killed meanwhile still releases its sockets and locks, and the next one starts; planes that
// meanwhile belong to another job do not get into the file.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/checkpoint/save_request.h"

namespace tidepool::memserver {

// Time limits of a save.
struct ApartSaveLimits {
  const Clock* clock = nullptr;  // for the deadline within the save; used by its thread
  int64_t timeout_ns = 0;
  // Time beyond the deadline, or after `stop`, for a call to return from the kernel.
  int64_t grace_ns = 0;
  const std::atomic<bool>* stop = nullptr;  // set when the daemon ends
};

// Writes the file of `request`; the planes and the request's other sources are read on this thread.
// Errors: as of WriteWeightsFile; kSaveFailed also if the file system did not return, and if there
// is no thread or descriptor for it.
Status SaveApart(SaveRequest request, const ApartSaveLimits& limits);

}  // namespace tidepool::memserver

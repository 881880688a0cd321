// ApartSave: one save on a thread and a descriptor table of its own. A user's file system that
// never answers delays only the caller, and only until the deadline.
//
// The thread that touches the user's files has a table of descriptors with nothing else in it, and
// never looks at the planes: the caller reads them for it, piece by piece, into a buffer that
// belongs to the save. One that never comes back from the kernel is left alone. A memserver that is
// killed meanwhile lets go of its sockets and locks all the same, and the next one starts; planes
// that were given to another job meanwhile do not come into the file.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/checkpoint/save_request.h"

namespace tidepool::memserver {

// How long a save may take.
struct ApartSaveLimits {
  const Clock* clock = nullptr;  // for the deadline within the save; used by its thread
  int64_t timeout_ns = 0;
  // Behind it, or behind `stop`, for a call to come back from the kernel.
  int64_t grace_ns = 0;
  const std::atomic<bool>* stop = nullptr;  // the daemon ends
};

// Writes the file of `request`; the planes and what the request reads elsewhere are read on this
// thread. Errors: as of WriteWeightsFile; kSaveFailed too when the file system did not come back,
// and when there is no thread or descriptor for it.
Status SaveApart(SaveRequest request, const ApartSaveLimits& limits);

}  // namespace tidepool::memserver

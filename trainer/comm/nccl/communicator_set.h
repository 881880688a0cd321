// CommunicatorSet: NCCL's communicators of this process. When one fails, all are aborted at the
// same time.
//
// One thread (the trainer's main thread). ncclCommAbort blocks: it frees memory of the GPU, for
// which the driver waits until every stream of the process stands still, also one in which a kernel
// of another group waits for the same lost peer. Aborted one after the other, the first never
// returns. So each is aborted by a thread of its own. After the deadline a thread that still stands
// in NCCL is left there, with its communicator: the process goes on, and the next attempt is
// another program (trainer/launch/begin_anew.h).
#pragma once

#include <cstdint>
#include <set>

#include "base/clock.h"
#include "trainer/comm/nccl/nccl_table.h"

namespace tidepool::trainer {

inline constexpr int64_t kAbortDeadlineNs = 10 * kNsPerSecond;

class CommunicatorSet {
 public:
  // The table must live as long as the process: a thread may still stand in it at its end.
  CommunicatorSet(const NcclTable* nccl, Clock* clock, int64_t deadline_ns = kAbortDeadlineNs)
      : nccl_(nccl), clock_(clock), deadline_ns_(deadline_ns) {}
  CommunicatorSet(const CommunicatorSet&) = delete;
  CommunicatorSet& operator=(const CommunicatorSet&) = delete;

  // Adds a communicator, which is aborted with the others from here on. Null is ignored.
  void Add(void* communicator);
  // Gives a communicator back to the caller alone. False: it was aborted and must not be used any
  // more.
  bool Remove(void* communicator) { return communicators_.erase(communicator) == 1; }
  bool Has(void* communicator) const { return communicators_.contains(communicator); }
  // Returns when all have ended, or at the deadline; the set is empty then. What the streams of
  // this process wait for, other than kernels of these communicators, must have been let go before.
  void AbortAll();

 private:
  const NcclTable* const nccl_;
  Clock* const clock_;
  const int64_t deadline_ns_;
  std::set<void*> communicators_;
};

}  // namespace tidepool::trainer

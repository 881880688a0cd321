// CommunicatorSet: the NCCL communicators of this process. When one fails, all are aborted at the
// same time.
//
// One thread (the trainer's main thread). ncclCommAbort blocks: it frees GPU memory, for which the
// driver waits until all streams of the process are idle, including one in which a kernel of
// another group waits for the same lost peer. Aborting one after the other would therefore never
// get past the first. So each communicator is aborted by a thread of its own. After the deadline a
// thread that is still inside NCCL is left there, with its communicator: the process goes on, and
// the next attempt runs in a new program (trainer/launch/begin_anew.h).
#pragma once

#include <cstdint>
#include <set>

#include "base/clock.h"
#include "trainer/comm/nccl/nccl_table.h"

namespace tidepool::trainer {

inline constexpr int64_t kAbortDeadlineNs = 10 * kNsPerSecond;

class CommunicatorSet {
 public:
  // `nccl` must live as long as the process: a thread may still be inside it at the end.
  CommunicatorSet(const NcclTable* nccl, Clock* clock, int64_t deadline_ns = kAbortDeadlineNs)
      : nccl_(nccl), clock_(clock), deadline_ns_(deadline_ns) {}
  CommunicatorSet(const CommunicatorSet&) = delete;
  CommunicatorSet& operator=(const CommunicatorSet&) = delete;

  // Adds a communicator, to be aborted with the others from now on. Ignores null.
  void Add(void* communicator);
  // Gives a communicator back to the caller alone. False: it was aborted and must not be used.
  bool Remove(void* communicator) { return communicators_.erase(communicator) == 1; }
  bool Has(void* communicator) const { return communicators_.contains(communicator); }
  // Returns when all aborts have ended, or at the deadline; the set is then empty. Anything else
  // that streams of this process wait for, besides these communicators' kernels, must be released
  // first.
  void AbortAll();

 private:
  const NcclTable* const nccl_;
  Clock* const clock_;
  const int64_t deadline_ns_;
  std::set<void*> communicators_;
};

}  // namespace tidepool::trainer

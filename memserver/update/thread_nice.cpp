#include "memserver/update/thread_nice.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>

#include "base/log.h"

namespace tidepool::memserver {
namespace {

// Sets the policy of this one thread; on Linux that does not affect its process.
bool SetPolicy(pid_t thread, int policy) {
  const sched_param none{};
  return sched_setscheduler(thread, policy, &none) == 0;
}

bool SetNice(pid_t thread, int nice) {
  return setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice) == 0;
}

}  // namespace

// Restoring the priority needs the right to the thread's nice value: tried one step upwards.
void ThreadNice::Begin() {
  thread_ = gettid();
  const int own = getpriority(PRIO_PROCESS, 0);
  rlimit limit{};
  const bool by_limit =
      getrlimit(RLIMIT_NICE, &limit) == 0 && static_cast<int64_t>(limit.rlim_cur) >= 20 - own;
  may_change_ = sched_getscheduler(0) == SCHED_OTHER &&
                (by_limit || (SetNice(thread_, own - 1) && SetNice(thread_, own)));
  if (!may_change_)
    LogDebug("a worker cannot give way to others: it has no right to go back", {{"nice", own}});
}

// `below_` is set after the policy, so that a thread that raises it sees the policy set. A late
// Raise may raise the thread once too often.
void ThreadNice::SetBelow(bool below) {
  if (!may_change_) return;
  if (!below) return Raise();
  if (below_.load(std::memory_order_relaxed)) return;
  SetPolicy(thread_, SCHED_IDLE);
  below_.store(true, std::memory_order_seq_cst);
}

void ThreadNice::Raise() {
  if (below_.load(std::memory_order_seq_cst) && below_.exchange(false, std::memory_order_acq_rel))
    SetPolicy(thread_, SCHED_OTHER);
}

}  // namespace tidepool::memserver

#include "memserver/update/thread_nice.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>

#include "base/log.h"

namespace tidepool::memserver {
namespace {

constexpr int kLowest = 19;

// Of one thread alone, on Linux.
bool SetNice(pid_t thread, int nice) {
  return setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice) == 0;
}

}  // namespace

// Upwards first: without the right nothing has changed then.
void ThreadNice::Begin() {
  thread_ = gettid();
  own_ = getpriority(PRIO_PROCESS, 0);
  rlimit limit{};
  const bool by_limit = getrlimit(RLIMIT_NICE, &limit) == 0 && static_cast<int64_t>(limit.rlim_cur) >= 20 - own_;
  may_change_ = own_ < kLowest && (by_limit || (SetNice(thread_, own_ - 1) && SetNice(thread_, own_)));
  if (!may_change_) LogDebug("a worker cannot give way to others: it has no right to go back", {{"nice", own_}});
}

// What is told last is what was done first, so whoever raises a thread finds it below. A Raise that is late may raise it once too often.
void ThreadNice::SetBelow(bool below) {
  if (!may_change_) return;
  if (!below) return Raise();
  if (below_.load(std::memory_order_relaxed)) return;
  SetNice(thread_, kLowest);
  below_.store(true, std::memory_order_seq_cst);
}

void ThreadNice::Raise() {
  if (below_.load(std::memory_order_seq_cst) && below_.exchange(false, std::memory_order_acq_rel)) SetNice(thread_, own_);
}

}  // namespace tidepool::memserver

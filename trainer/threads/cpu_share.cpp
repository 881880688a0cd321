#include "trainer/threads/cpu_share.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "base/planted.h"

namespace tidepool::trainer {

std::optional<CpuAccount> CpuAccountOf(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/schedstat");
  CpuAccount account;
  if (!(file >> account.ran_ns >> account.waited_ns)) return std::nullopt;
  return account;
}

bool CpuShare::Look(int64_t now_ns, const CpuAccount& account) {
  if (window_from_ns_ && now_ns - *window_from_ns_ < kWindowNs) return shared_;

  if (window_from_ns_) {
    const double window_ns = static_cast<double>(now_ns - *window_from_ns_);
    Judge(now_ns, static_cast<double>(account.waited_ns - waited_before_ns_) / window_ns);
  }

  window_from_ns_ = now_ns;
  waited_before_ns_ = account.waited_ns;
  return shared_;
}

void CpuShare::Judge(int64_t now_ns, double waited) {
  const int64_t lasted_ns = now_ns - since_ns_;

  if (!shared_ && waited >= kShared) {
    // A try that lasted longer than the preceding hold was right, so the hold is short again.
    hold_ns_ =
        since_ns_ == 0 || lasted_ns > hold_ns_ ? kHoldFirstNs : std::min(2 * hold_ns_, kHoldMostNs);
    if (TP_PLANTED("trainer.share_tried_at_once")) hold_ns_ = 0;
    shared_ = true;
    since_ns_ = now_ns;
  } else if (shared_ && waited < kAlone && lasted_ns >= hold_ns_) {
    shared_ = false;
    since_ns_ = now_ns;
  }
}

}  // namespace tidepool::trainer

#include "memserver/jobs/step_figures.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace tidepool::memserver {

void StepFigures::Sealed(int64_t now_ns, bool skipped, const std::optional<shm::StepFacts>& facts) {
  skipped_ += skipped ? 1 : 0;
  facts_ = facts;
  if (facts) tokens_ += facts->tokens;

  if (last_seal_ns_ != 0) {
    last_seconds_ = static_cast<double>(now_ns - last_seal_ns_) / kNsPerSecond;
    recent_[times_.count % kRecent] = static_cast<float>(last_seconds_);
    times_.Add(last_seconds_);
  }
  last_seal_ns_ = now_ns;
}

StepTimes StepFigures::Times() const {
  StepTimes times = times_;
  if (times.count == 0) return times;
  std::array<float, kRecent> sorted = recent_;
  const size_t some = std::min<uint64_t>(times.count, kRecent);
  std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(some));

  // The smallest value that at least this share of the samples does not exceed.
  const auto at = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(some)));
    return static_cast<double>(sorted[std::max<size_t>(rank, 1) - 1]);
  };
  times.p50 = at(0.5);
  times.p99 = at(0.99);
  return times;
}

}  // namespace tidepool::memserver

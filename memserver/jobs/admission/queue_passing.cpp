#include "memserver/jobs/admission/queue_passing.h"

#include <algorithm>

#include "base/planted.h"

namespace tidepool::memserver {

bool MayPass(const WaitingRank& other, const Demand& wants, const Demand& demand,
             uint64_t rcache_limit) {
  if (other.event.uid == demand.uid) return false;
  const uint64_t pool = demand.pool_bytes + demand.frozen_bytes;
  if (pool > wants.pool_bytes / kSmallShare || demand.rcache_bytes > rcache_limit / kSmallShare)
    return false;

  if (TP_PLANTED("jobs.passed_without_end")) return true;
  const auto of_user = std::count(other.passed_by.begin(), other.passed_by.end(), demand.uid);
  return other.passed_by.size() < kPassesMax && static_cast<size_t>(of_user) < kPassesOfUserMax;
}

}  // namespace tidepool::memserver

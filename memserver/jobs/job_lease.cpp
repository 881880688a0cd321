#include "memserver/jobs/job_lease.h"

#include <algorithm>

#include "base/hot.h"
#include "base/planted.h"

namespace tidepool::memserver {

TP_HOT std::optional<int64_t> LeaseEndNs(const Job& job, const LoopOptions& options) {
  if (job.phase != JobPhase::kOpen || job.HasRanks()) return std::nullopt;
  const bool without_end = job.suspended_by_operator || TP_PLANTED("jobs.suspended_for_ever");
  if (job.suspended && without_end) return kKeptWithoutEnd;
  return job.detached_ns + options.times.lease_ns;
}

std::optional<int64_t> KeptUntilSeconds(const Job& job, const LoopOptions& options,
                                        const Clock& clock) {
  const std::optional<int64_t> end = LeaseEndNs(job, options);
  if (!end || *end == kKeptWithoutEnd) return end;
  // Rounded up: a promise until some second includes that second.
  const int64_t left = std::max<int64_t>(0, *end - clock.NowNs());
  return WallSeconds() + (left + kNsPerSecond - 1) / kNsPerSecond;
}

void NoteLost(const Job& job, const std::string& why, LostJobs* lost) {
  if (!job.IsRecorded() || job.states->sealed_version() == 0 || TP_PLANTED("jobs.loss_not_noted"))
    return;
  lost->Note({job.spec().name, job.uid, job.states->sealed_version(), WallSeconds(), why});
}

int64_t AwaitNs(const LoopOptions& options) {
  const int64_t at_least = std::max(options.times.lease_ns, options.await_ns_min);
  return TP_PLANTED("jobs.awaited_for_the_lease") ? at_least
                                                  : std::min(at_least, options.await_ns_max);
}

}  // namespace tidepool::memserver

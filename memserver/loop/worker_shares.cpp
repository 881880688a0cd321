#include "memserver/loop/worker_shares.h"

#include <algorithm>

#include "base/hot.h"

namespace tidepool::memserver {

// The highest priority of the jobs that have ranks.
TP_HOT Priority WorkerShares::HighestPresent() const {
  Priority highest = Priority::kLow;
  for (const auto& job : tables_->jobs) {
    if (job->worker_share.priority > highest && !job->suspended && job->HasSlots())
      highest = job->worker_share.priority;
  }
  return highest;
}

// A job without ranks, or a suspended one, holds no workers: nobody waits for its work.
void WorkerShares::HoldFor(const Job& job) {
  if (tables_->jobs.size() < 2 || job.suspended || !job.HasSlots()) return;
  const int64_t now = neighbours_.clock->NowNs();
  asked_ns_[static_cast<size_t>(job.worker_share.priority)] = now;
  if (job.worker_share.priority < Priority::kHigh) return;
  const auto is_below = [](const auto& other) {
    return other->worker_share.priority < Priority::kHigh;
  };
  if (std::any_of(tables_->jobs.begin(), tables_->jobs.end(), is_below))
    held_until_ns_ = now + kHeldForHighNs;
}

// The highest priority of the jobs that have recently sent a request while other jobs were present.
Priority WorkerShares::HighestAsking() const {
  const int64_t since = neighbours_.clock->NowNs() - kGivesWayNs;
  for (size_t priority = kPriorities; priority-- > 0;) {
    if (asked_ns_[priority] > since) return static_cast<Priority>(priority);
  }
  return Priority::kLow;
}

// True if the team has so much work of lower priorities that more of it would only wait, and delay
// work of `highest`.
TP_HOT bool WorkerShares::TeamHasEnoughBelow(Priority highest) const {
  const uint64_t workers = std::max(neighbours_.team->threads(), 1U);
  uint64_t items = 0, bytes = 0;
  for (const auto& job : tables_->jobs) {
    if (job->worker_share.priority >= highest) continue;
    items += job->work_at_team;
    bytes += job->bytes_at_team;
  }
  return items >= workers && bytes >= workers * FairShare::kQuantum;
}

// Gives some work to jobs of lower priority than `high`, once per interval. They take turns.
bool WorkerShares::GiveBesideHigh(Priority asking) {
  const int64_t now = neighbours_.clock->NowNs();
  if (now < next_beside_high_ns_) return false;
  const size_t jobs = tables_->jobs.size();
  uint64_t given = 0;

  for (size_t without = 0;
       without < jobs && given < kBytesBesideHigh && neighbours_.team->HasRoom();) {
    Job* const job = tables_->jobs[++last_beside_high_ % jobs].get();
    Share& share = job->worker_share;
    const uint64_t bytes = share.priority < Priority::kHigh ? Give(job, asking) : 0;
    without = bytes == 0 ? without + 1 : 0;
    share.served += bytes;
    given += bytes;
  }

  if (given > 0)
    next_beside_high_ns_ = now + kBesideHighNs / std::max<int64_t>(neighbours_.team->threads(), 1);
  return given > 0;
}

// Gives the job's next work to the team, which does it at a lower priority than jobs of priority
// `asking`. Returns the bytes that it touches; 0: there is none.
TP_HOT uint64_t WorkerShares::Give(Job* job, Priority asking) {
  Work work;
  if (!next_work_(job, &work)) return 0;
  work.background = job->worker_share.priority < asking;
  work.timed = job->spans != nullptr;
  const uint64_t bytes = BytesTouched(work);
  ++job->work_at_team;
  job->bytes_at_team += bytes;
  neighbours_.team->Push(work);
  return bytes;
}

TP_HOT bool WorkerShares::FeedTeam() {
  if (!neighbours_.team->HasRoom()) return false;
  if (held_until_ns_ > 0 && neighbours_.clock->NowNs() >= held_until_ns_) held_until_ns_ = 0;
  const bool held = held_until_ns_ > 0;
  const Priority highest = HighestPresent(),
                 asking = tables_->jobs.size() > 1 ? HighestAsking() : Priority::kLow;
  const auto share = [this](size_t i) -> Share& { return tables_->jobs[i]->worker_share; };
  const auto take = [this, asking](size_t i) { return Give(tables_->jobs[i].get(), asking); };

  bool fed = held && GiveBesideHigh(asking);
  while (neighbours_.team->HasRoom()) {
    const Priority lowest = held                          ? Priority::kHigh
                            : TeamHasEnoughBelow(highest) ? highest
                                                          : Priority::kLow;
    if (!workers_.Serve(tables_->jobs.size(), share, take, lowest)) break;
    fed = true;
  }
  return fed;
}

}  // namespace tidepool::memserver

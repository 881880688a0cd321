// WorkerShares: decides which job the optimizer workers serve next, by the jobs' weights and
// priorities (fair_share.h).
//
// One thread (the serve loop). A job of priority `high` that has sent a request has the workers to
// itself for a while (kHeldForHighNs), except for a little work of others now and then
// (kBytesBesideHigh, kBesideHighNs).
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

class WorkerShares {
 public:
  // Names the job's next work; false if it has none.
  using NextWork = std::function<bool(Job* job, Work* work)>;

  WorkerShares(const LoopNeighbours& neighbours, Tables* tables, NextWork next_work)
      : neighbours_(neighbours), tables_(tables), next_work_(std::move(next_work)) {}

  // Gives work to the team while it has room. True if some was given.
  bool FeedTeam();
  // Notes that the job has sent a request.
  void HoldFor(const Job& job);
  // The workers are held for jobs of priority `high` until then; 0: they are not.
  int64_t held_until_ns() const { return held_until_ns_; }

 private:
  uint64_t Give(Job* job, Priority asking);
  Priority HighestPresent() const;
  Priority HighestAsking() const;
  bool GiveBesideHigh(Priority asking);
  bool TeamHasEnoughBelow(Priority highest) const;

  const LoopNeighbours neighbours_;
  Tables* const tables_;
  const NextWork next_work_;
  FairShare workers_;
  int64_t held_until_ns_ = 0, next_beside_high_ns_ = 0;
  size_t last_beside_high_ = 0;  // index in tables_->jobs
  // When jobs of each priority last sent a request while other jobs were present.
  std::array<int64_t, kPriorities> asked_ns_{};
};

}  // namespace tidepool::memserver

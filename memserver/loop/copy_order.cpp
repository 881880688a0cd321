#include "memserver/loop/copy_order.h"

#include "base/hot.h"

namespace tidepool::memserver {

TP_HOT bool CopyOrder::Begin() {
  queues_.resize(tables_->roots.size());
  bool worked = false;
  for (size_t root = 0; root < queues_.size(); ++root) {
    for (const LaneWay way : {LaneWay::kToRcache, LaneWay::kToPool}) {
      Queue& queue = queues_[root][static_cast<size_t>(way)];
      for (uint32_t left = kRequestsPerTurn; left > 0 && BeginOne({root, way}, &queue); --left)
        worked = true;
    }
  }
  return worked;
}

CopyOrder::Next CopyOrder::NextOf(const Job& job, Place place) const {
  Next next;
  if (!job.client_owned_rcache || job.suspended) return next;
  for (SessionSlot* slot : job.slots) {
    if (slot == nullptr || slot->session == nullptr || slot->violation != nullptr || slot->leaving)
      continue;
    const Session& session = *slot->session;
    if (!session.is_brought() || session.lane().gpu()->root().number() != place.root) continue;

    const shm::Request* request = session.NextToBegin(place.way);
    if (request == nullptr) continue;
    const uint64_t awaited_at = session.lane().AwaitedAt(*request);
    if (next.request == nullptr || awaited_at < next.awaited_at)
      next = {slot, request, awaited_at, session.lane().IsAwaited(*request)};
  }
  return next;
}

uint64_t CopyOrder::BeginOf(const Job& job, Place place, bool awaited_only) {
  for (;;) {
    const Next next = NextOf(job, place);
    if (next.request == nullptr || (awaited_only && !next.awaited)) return 0;
    if (const uint64_t cost = dispatcher_->BeginHeld(next.slot, *next.request); cost > 0)
      return cost;
  }
}

bool CopyOrder::BeginOne(Place place, Queue* queue) {
  bool awaited = false, ahead = false;
  for (const auto& job : tables_->jobs) {
    const Next next = NextOf(*job, place);
    if (next.request != nullptr) (next.awaited ? awaited : ahead) = true;
  }
  if (!awaited && !ahead) return false;
  if (awaited && ahead && BeginAwaited(place, queue)) return true;

  const auto share = [this, place](size_t i) -> Share& {
    Job& job = *tables_->jobs[i];
    return job.client_owned_rcache ? job.RootShare(place.root, place.way) : nobody_;
  };
  const auto take = [this, place](size_t i) {
    return BeginOf(*tables_->jobs[i], place, /*awaited_only=*/false);
  };
  return queue->fair.Serve(tables_->jobs.size(), share, take);
}

bool CopyOrder::BeginAwaited(Place place, Queue* queue) {
  const size_t jobs = tables_->jobs.size();
  for (size_t i = 0; i < jobs; ++i) {
    queue->first_job = (queue->first_job + 1) % jobs;
    Job& job = *tables_->jobs[queue->first_job];
    if (!job.client_owned_rcache) continue;
    const auto take = [this, &job, place] { return BeginOf(job, place, /*awaited_only=*/true); };
    if (queue->fair.ServeOutOfTurn(&job.RootShare(place.root, place.way), take)) return true;
  }
  return false;
}

}  // namespace tidepool::memserver

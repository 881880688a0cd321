#include "memserver/jobs/admission/admission_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/hot.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/admission/queue_passing.h"
#include "memserver/residency/fair_places.h"

namespace tidepool::memserver {
namespace {

bool IsOfRoom(ErrorId id) {
  return id == ErrorId::kPoolFull || id == ErrorId::kNvmeFull || id == ErrorId::kQuotaExceeded ||
         id == ErrorId::kRcacheRefused || id == ErrorId::kTooManySessions;
}

bool IsOfOneJob(const ReserveJob& one, const ReserveJob& other) {
  return one.uid == other.uid && one.spec->name == other.spec->name;
}

}  // namespace

void AdmissionQueue::Reserve(ReserveJob event) {
  const Status turn = CheckTurn(event);
  // A rank that passes others needs its room now: it does not move to the head of the queue.
  const std::vector<WaitingRank*> passed =
      turn.ok() ? PassedBy(event, waiting_.size()) : std::vector<WaitingRank*>();
  Result<SessionSlot*> taken = turn.ok() ? admission_->TakeSlot(event) : Result<SessionSlot*>(turn);
  if (taken.ok()) {
    for (WaitingRank* other : passed) other->passed_by.push_back(event.uid);
    return admission_->Grant(**taken);
  }

  const bool its_turn = turn.ok() && passed.empty();
  Status why = taken.status();
  if (!StaysParked(event, its_turn, &why)) return admission_->Refuse(event, why);
  if (const Status place = CheckPlaces(event); !place.ok())
    return admission_->Refuse(event, Status(place).Why(why.what()));
  Enqueue(std::move(event), why, its_turn);
}

Priority AdmissionQueue::PriorityOf(const ReserveJob& event) const {
  return context_.tables->quotas.QuotaFor(event.spec->name, event.uid).priority;
}

// The first rank of a run reserves the room for all its ranks.
bool AdmissionQueue::NeedsRoom(const ReserveJob& event) const {
  const Job* job = context_.tables->FindJob(event.spec->name);
  return job == nullptr || !job->HasRanks();
}

// True while the job of this name is being removed: the ranks of its last run are gone, and its
// memory is returned as soon as no worker, drive or save uses it.
bool AdmissionQueue::StaleIncarnationLeaves(const ReserveJob& event) const {
  if (context_.tables->draining || context_.settings.closed() ||
      TP_PLANTED("jobs.stale_incarnation_refused"))
    return false;
  return std::any_of(context_.tables->jobs.begin(), context_.tables->jobs.end(),
                     [&event](const auto& job) {
                       return job->phase == JobPhase::kRemoving && job->uid == event.uid &&
                              job->spec().name == event.spec->name;
                     });
}

// True when a stale incarnation of the rank's job holds room that this rank takes over, now or
// soon.
bool AdmissionQueue::ComesAgain(const ReserveJob& event) const {
  const auto waits_too = [&event](const WaitingRank& other) {
    return other.comes_again && IsOfOneJob(other.event, event);
  };
  return StaleIncarnationLeaves(event) || std::any_of(waiting_.begin(), waiting_.end(), waits_too);
}

// Checks whether a rank that needs room may be served before those that already wait. It queues
// behind them unless its priority is higher. A rank above its account's limit holds up nobody. Two
// kinds of jobs are not held up: a job that comes back is not blocked by ranks that wait for states
// to move, and a job whose stale incarnation is being removed takes over that room, which no other
// rank could have. Small jobs of other users may pass (queue_passing.h).
Status AdmissionQueue::CheckTurn(const ReserveJob& event) const {
  if (waiting_.empty() || !NeedsRoom(event) || ComesAgain(event)) return Status();
  const Job* job = context_.tables->FindJob(event.spec->name);
  const Priority priority = PriorityOf(event);
  for (const WaitingRank& other : waiting_) {
    if (other.priority < priority) break;
    // The other ranks of the same job wait with it.
    if (IsOfOneJob(other.event, event)) return other.why;
    if (StaleIncarnationLeaves(other.event)) continue;
    if (other.why.id() == ErrorId::kQuotaExceeded) continue;

    if (job != nullptr && (!other.event.may_wait || demotions_->mover().job() == job->id)) continue;
    // A rank that only stands behind others is passed together with them. After a change, Poll
    // decides first whose turn it is.
    const bool queue_is_served = seen_changes_ == context_.room_changes->total();
    if (queue_is_served && (!other.lacks_room || LetsPass(other, event))) continue;
    return Status(ErrorId::kPoolFull, "job " + event.spec->name + " has to wait: job " +
                                          other.event.spec->name + " waits for room before it")
        .Why(other.why.what());
  }
  return Status();
}

bool AdmissionQueue::StaysParked(const ReserveJob& event, bool its_turn, Status* why) {
  if (IsOfRoom(why->id()) && ComesAgain(event)) {
    *why = Status(why->id(), "job " + event.spec->name +
                                 " waits until what its ranks before held has been given back");
    return true;
  }
  if (demotions_->MakesRoom(event, its_turn, why)) return true;
  return event.may_wait && IsOfRoom(why->id()) && !context_.tables->draining &&
         admission_->CouldEverFit(event);
}

bool AdmissionQueue::LetsPass(const WaitingRank& other, const ReserveJob& event) const {
  if (other.why.id() != ErrorId::kPoolFull && other.why.id() != ErrorId::kNvmeFull) return false;
  if (context_.tables->FindJob(event.spec->name) != nullptr) return true;
  const Priority priority = PriorityOf(event);
  if (other.priority != priority || demotions_->busy()) return false;
  return MayPass(other, admission_->DemandOf(other.event), admission_->DemandOf(event),
                 context_.options.rcache_limit);
}

// The ranks among the first `before` in the queue that lack room, and that a new job would pass.
std::vector<WaitingRank*> AdmissionQueue::PassedBy(const ReserveJob& event, size_t before) {
  std::vector<WaitingRank*> passed;
  if (context_.tables->FindJob(event.spec->name) != nullptr || ComesAgain(event)) return passed;
  const Priority priority = PriorityOf(event);
  for (size_t i = 0; i < before && i < waiting_.size(); ++i) {
    WaitingRank& other = waiting_[i];
    if (other.priority < priority) break;
    if (other.lacks_room && other.why.id() != ErrorId::kQuotaExceeded) passed.push_back(&other);
  }
  return passed;
}

// Every waiting rank holds a connection. Some connections stay free for ranks that need no room,
// and no user may take all places.
Status AdmissionQueue::CheckPlaces(const ReserveJob& event) const {
  Places places{.what = "places in the queue for room",
                .all = context_.options.limits.sessions_max,
                .uid = event.uid};
  places.used = static_cast<uint32_t>(waiting_.size());
  places.of_user_max = context_.options.limits.user_sessions_max;
  places.is_limited = event.uid != 0 && event.uid != context_.options.owner;
  for (const WaitingRank& other : waiting_) places.own += other.event.uid == event.uid ? 1 : 0;
  return AdmitPlace(places);
}

void AdmissionQueue::Enqueue(ReserveJob event, const Status& why, bool had_its_turn) {
  WaitingRank rank;
  rank.account = context_.tables->quotas.AccountOf(event.spec->name, event.uid);
  rank.priority = PriorityOf(event);
  rank.since_ns = context_.neighbours.clock->NowNs();
  rank.why = why;
  rank.comes_again = ComesAgain(event);
  rank.lacks_room = had_its_turn;
  rank.event = std::move(event);

  const auto before = std::find_if(waiting_.begin(), waiting_.end(), [&](const WaitingRank& other) {
    return other.priority < rank.priority;
  });
  const auto place = static_cast<uint32_t>(before - waiting_.begin()) + 1;
  context_.log->Tell(rank.event.uid, LogLevel::kInfo, "rank waits for room",
                     {{"name", rank.event.spec->name},
                      {"rank", rank.event.rank},
                      {"place", place},
                      {"why", why.Line()}});
  // A rank that does not wait for jobs to end is not told about the queue: it is in the queue only
  // while states move for it.
  if (rank.event.may_wait) context_.Send(Queued{rank.event.connection, place, why});
  waiting_.insert(before, std::move(rank));
  TP_POINT("server.rank_queued");
}

void AdmissionQueue::GiveSlot(size_t index, const SessionSlot& slot) {
  const WaitingRank served = std::move(waiting_[index]);
  waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(index));
  // Zeroing may take longer than the rank would have waited for room.
  if (served.event.may_wait) context_.Send(Queued{served.event.connection, 1, Status()});
  admission_->Grant(slot);
}

// First serves the ranks that take over the room of their stale incarnations. A rank that still
// finds no room waits like the others from here on, or is refused.
void AdmissionQueue::ServeThoseWhoComeAgain() {
  for (size_t i = 0; i < waiting_.size();) {
    if (!waiting_[i].comes_again || StaleIncarnationLeaves(waiting_[i].event)) {
      ++i;
      continue;
    }

    waiting_[i].comes_again = false;
    Result<SessionSlot*> taken = admission_->TakeSlot(waiting_[i].event);
    if (taken.ok()) {
      GiveSlot(i, **taken);
    } else {
      ++i;
    }
  }
}

// True when a rank before it lacks room and cannot be passed. A rank above its account's limit
// waits for jobs of that account alone, and holds up nobody.
bool AdmissionQueue::IsHeldUp(size_t index) const {
  const ReserveJob& event = waiting_[index].event;
  const auto holds_up = [&](const WaitingRank& other) {
    return other.lacks_room && other.why.id() != ErrorId::kQuotaExceeded && !LetsPass(other, event);
  };
  return NeedsRoom(event) &&
         std::any_of(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(index), holds_up);
}

// Serves or refuses the rank at `index` of the queue. True when it no longer waits.
bool AdmissionQueue::ServeOrRefuse(size_t index) {
  const ReserveJob& event = waiting_[index].event;
  if (StaleIncarnationLeaves(event)) return false;  // it waits for its own former room
  const bool its_turn = !IsHeldUp(index);
  const std::vector<WaitingRank*> passed =
      its_turn ? PassedBy(event, index) : std::vector<WaitingRank*>();

  // While no new jobs are taken, waiting ranks keep their places.
  const bool closed = context_.settings.closed();
  if ((!its_turn || closed) && (event.may_wait || (demotions_->busy() && !closed))) return false;

  Result<SessionSlot*> taken =
      its_turn ? admission_->TakeSlot(event) : Result<SessionSlot*>(waiting_[index].why);
  if (taken.ok()) {
    for (WaitingRank* other : passed) other->passed_by.push_back(event.uid);
    GiveSlot(index, **taken);
    return true;
  }

  Status why = taken.status();
  const bool at_the_head = its_turn && passed.empty();
  if (StaysParked(event, at_the_head, &why)) {
    waiting_[index].lacks_room = at_the_head;
    waiting_[index].why = why;
    return false;
  }
  const WaitingRank refused = std::move(waiting_[index]);
  waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(index));
  admission_->Refuse(refused.event, why);
  return true;
}

// Serves in order: the first rank that lacks room blocks all ranks behind it that need some, except
// small jobs of other users, which may pass a bounded number of times.
TP_HOT bool AdmissionQueue::Poll() {
  if (waiting_.empty() || seen_changes_ == context_.room_changes->total()) return false;
  seen_changes_ = context_.room_changes->total();
  for (WaitingRank& rank : waiting_) rank.lacks_room = false;
  ServeThoseWhoComeAgain();

  for (size_t i = 0; i < waiting_.size();) {
    if (!ServeOrRefuse(i)) ++i;
  }
  return true;
}

bool AdmissionQueue::Forget(ConnectionId connection) {
  const auto gone = [connection](const WaitingRank& rank) {
    return rank.event.connection == connection;
  };
  if (std::erase_if(waiting_, gone) == 0) return false;
  context_.room_changes->Note(RoomChange::kWaitingLeft);
  return true;
}

void AdmissionQueue::RefuseAll(const Status& why) {
  for (const WaitingRank& rank : waiting_) admission_->Refuse(rank.event, why);
  waiting_.clear();
}

void AdmissionQueue::ApplyQuotas() {
  for (WaitingRank& rank : waiting_) {
    rank.account = context_.tables->quotas.AccountOf(rank.event.spec->name, rank.event.uid);
    rank.priority = PriorityOf(rank.event);
  }
  const auto before = [](const WaitingRank& one, const WaitingRank& other) {
    return one.priority > other.priority;
  };
  std::stable_sort(waiting_.begin(), waiting_.end(), before);
  context_.room_changes->Note(RoomChange::kQuotas);
}

}  // namespace tidepool::memserver

// The third part of JobDesk: ranks that wait for room.
#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/job_desk.h"
#include "memserver/jobs/queue_passing.h"
#include "memserver/residency/fair_places.h"
#include "memserver/jobs/snapshot_builder.h"
#include "shm/spec/frozen.h"
#include "shm/spec/state_footprint.h"

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

Demand JobDesk::DemandOf(const ReserveJob& event) const {
  const shm::JobSpec& spec = *event.spec;
  Demand demand;
  demand.job = spec.name;
  demand.account = tables_->quotas.AccountOf(spec.name, event.uid);
  demand.pool_bytes =
      tables_->FindJob(spec.name) == nullptr ? shm::HostBytesOf(spec, shm::kNoSpill) : 0;
  if (demand.pool_bytes > 0) demand.frozen_bytes = tables_->frozen->MissingBytes(spec, event.uid);
  demand.rcache_bytes = event.brings_rcache ? 0 : spec.world * spec.rcache_bytes;
  demand.ranks = spec.world;
  demand.uid = event.uid;
  // Root and whoever runs memserver may have all.
  demand.is_limited = event.uid != 0 && event.uid != options_.owner;
  if (!demand.is_limited) return demand;
  demand.user_ranks_max = options_.limits.user_sessions_max;
  demand.user_jobs_max = options_.limits.UserJobs(tables_->live.jobs_max);
  return demand;
}

// The first rank of a run brings the room of all of them.
bool JobDesk::NeedsRoom(const ReserveJob& event) const {
  const Job* job = tables_->FindJob(event.spec->name);
  return job == nullptr || !job->HasRanks();
}

// The job of this name is being removed: the ranks of its last run are gone, and what it holds goes
// back as soon as no worker, drive or save has anything of it.
bool JobDesk::FormerSelfLeaves(const ReserveJob& event) const {
  if (tables_->draining || tables_->closed || TP_PLANTED("jobs.former_self_refused")) return false;
  return std::any_of(tables_->jobs.begin(), tables_->jobs.end(), [&event](const auto& job) {
    return job->phase == JobPhase::kRemoving && job->uid == event.uid &&
           job->spec().name == event.spec->name;
  });
}

// A rank of a job whose former self has room that it may take the place of, now or in a moment.
bool JobDesk::ComesAgain(const ReserveJob& event) const {
  const auto waits_too = [&event](const WaitingRank& other) {
    return other.comes_again && IsOfOneJob(other.event, event);
  };
  return FormerSelfLeaves(event) ||
         std::any_of(tables_->waiting.begin(), tables_->waiting.end(), waits_too);
}

// Whoever needs room comes behind those that wait for it already, unless its priority is higher.
// Those above the limit of their own account hold up nobody. A job that comes back is not held up
// by those that are here only because states move: least of all by those that want its own room.
// Nor is one whose former self is being removed: it takes that one's place, and those that wait for
// their former selves ask for nothing that others could have. What a job wants of the pool that
// comes back it has already, and small jobs of other users may pass (queue_passing.h).
Status JobDesk::CheckTurn(const ReserveJob& event) const {
  if (tables_->waiting.empty() || !NeedsRoom(event) || ComesAgain(event)) return Status();
  const Job* job = tables_->FindJob(event.spec->name);
  const Priority priority = tables_->quotas.QuotaFor(event.spec->name, event.uid).priority;
  for (const WaitingRank& other : tables_->waiting) {
    if (other.priority < priority) break;
    // The other ranks of the same job wait with it.
    if (IsOfOneJob(other.event, event)) return other.why;
    if (FormerSelfLeaves(other.event)) continue;
    if (other.why.id() == ErrorId::kQuotaExceeded) continue;
    if (job != nullptr && (!other.event.may_wait || tables_->demotion.job() == job->id)) continue;
    // Somebody who stands behind others only is passed with them. Whose turn it is now,
    // ServeWaiting says first.
    const bool queue_is_served = served_room_changes_ == tables_->room_changes.total();
    if (queue_is_served && (!other.lacks_room || LetsPass(other, event))) continue;
    return Status(ErrorId::kPoolFull, "job " + event.spec->name + " has to wait: job " +
                                          other.event.spec->name + " waits for room before it")
        .Why(other.why.what());
  }
  return Status();
}

bool JobDesk::StaysParked(const ReserveJob& event, bool its_turn, Status* why) {
  if (IsOfRoom(why->id()) && ComesAgain(event)) {
    *why = Status(why->id(), "job " + event.spec->name +
                                 " waits until what its ranks before held has been given back");
    return true;
  }
  if (MakesRoom(event, its_turn, why)) return true;
  return event.may_wait && StaysWaiting(event, *why);
}

void JobDesk::Tell(uint32_t uid, LogLevel level, std::string_view message,
                   std::initializer_list<LogField> fields) {
  const auto left_out = lines_.Allow(uid, parts_.clock->NowNs());
  if (!left_out && !TP_PLANTED("jobs.log_not_limited")) return;
  if (left_out.value_or(0) > 0)
    LogWarn("lines about the ranks and jobs of a user were left out",
            {{"uid", uid}, {"count", *left_out}});
  Log(level, message, fields);
}

bool JobDesk::StaysWaiting(const ReserveJob& event, const Status& why) const {
  if (tables_->draining || !IsOfRoom(why.id())) return false;
  Ledger empty = BuildLedger(parts_, options_, *tables_);
  empty.holdings.clear();
  Demand demand = DemandOf(event);
  if (demand.pool_bytes > 0) {
    demand.frozen_bytes = shm::FrozenPoolBytes(*event.spec);
    Ledger with_frozen = empty;
    const auto capacities =
        parts_.tier == nullptr ? std::vector<uint64_t>() : parts_.tier->Capacities();
    if (!AdmitFrozen(&with_frozen, demand).ok() ||
        !Place(*event.spec, with_frozen, capacities, &demand).ok())
      return false;
  }
  return CouldEverFit(std::move(empty), demand).ok();
}

bool JobDesk::LetsPass(const WaitingRank& other, const ReserveJob& event) const {
  if (other.why.id() != ErrorId::kPoolFull && other.why.id() != ErrorId::kNvmeFull) return false;
  if (tables_->FindJob(event.spec->name) != nullptr) return true;
  const Priority priority = tables_->quotas.QuotaFor(event.spec->name, event.uid).priority;
  if (other.priority != priority || IsDemoting()) return false;
  return MayPass(other, DemandOf(other.event), DemandOf(event), options_.rcache_limit);
}

// Those of the first `before` in the queue that lack room, and that a new job would pass.
std::vector<WaitingRank*> JobDesk::PassedBy(const ReserveJob& event, size_t before) const {
  std::vector<WaitingRank*> passed;
  if (tables_->FindJob(event.spec->name) != nullptr || ComesAgain(event)) return passed;
  const Priority priority = tables_->quotas.QuotaFor(event.spec->name, event.uid).priority;
  for (size_t i = 0; i < before && i < tables_->waiting.size(); ++i) {
    WaitingRank& other = tables_->waiting[i];
    if (other.priority < priority) break;
    if (other.lacks_room && other.why.id() != ErrorId::kQuotaExceeded) passed.push_back(&other);
  }
  return passed;
}

// Each that waits holds a connection, of which ranks that need no room must find one; and no user
// takes all places.
Status JobDesk::CheckQueue(const ReserveJob& event) const {
  Places places{.what = "places in the queue for room",
                .all = options_.limits.sessions_max,
                .uid = event.uid};
  places.used = static_cast<uint32_t>(tables_->waiting.size());
  places.of_user_max = options_.limits.user_sessions_max;
  places.is_limited = event.uid != 0 && event.uid != options_.owner;
  for (const WaitingRank& other : tables_->waiting)
    places.own += other.event.uid == event.uid ? 1 : 0;
  return AdmitPlace(places);
}

void JobDesk::Enqueue(ReserveJob event, const Status& why, bool had_its_turn) {
  WaitingRank rank;
  rank.account = tables_->quotas.AccountOf(event.spec->name, event.uid);
  rank.priority = tables_->quotas.QuotaFor(event.spec->name, event.uid).priority;
  rank.since_ns = parts_.clock->NowNs();
  rank.why = why;
  rank.comes_again = ComesAgain(event);
  rank.lacks_room = had_its_turn;
  rank.event = std::move(event);
  auto& waiting = tables_->waiting;
  const auto before = std::find_if(waiting.begin(), waiting.end(), [&](const WaitingRank& other) {
    return other.priority < rank.priority;
  });
  const auto place = static_cast<uint32_t>(before - waiting.begin()) + 1;
  Tell(rank.event.uid, LogLevel::kInfo, "rank waits for room",
       {{"name", rank.event.spec->name},
        {"rank", rank.event.rank},
        {"place", place},
        {"why", why.Line()}});
  // One that does not wait for jobs to end is not told of the queue: it is in it only while states
  // move for it.
  if (rank.event.may_wait) Send(Queued{rank.event.connection, place, why});
  waiting.insert(before, std::move(rank));
  TP_POINT("server.rank_queued");
}

void JobDesk::ServeFrom(size_t index, const Seat& seat) {
  const WaitingRank served = std::move(tables_->waiting[index]);
  tables_->waiting.erase(tables_->waiting.begin() + static_cast<ptrdiff_t>(index));
  // Zeroing may take longer than it would have waited for room.
  if (served.event.may_wait) Send(Queued{served.event.connection, 1, Status()});
  Grant(seat);
}

// Before everybody else: they take the place of their former selves. Who finds no room even so
// waits like others from here on, or is refused.
void JobDesk::ServeThoseWhoComeAgain() {
  auto& waiting = tables_->waiting;
  for (size_t i = 0; i < waiting.size();) {
    if (!waiting[i].comes_again || FormerSelfLeaves(waiting[i].event)) {
      ++i;
      continue;
    }
    waiting[i].comes_again = false;
    Result<Seat*> taken = TakeSeat(waiting[i].event);
    if (taken.ok()) {
      ServeFrom(i, **taken);
    } else {
      ++i;
    }
  }
}

// In order: the first that lacks room holds up everybody behind it that needs some, but for small
// jobs of other users, and those not for ever. One above the limit of its account waits for jobs of
// that account alone.
bool JobDesk::ServeWaiting() {
  auto& waiting = tables_->waiting;
  if (waiting.empty() || served_room_changes_ == tables_->room_changes.total()) return false;
  served_room_changes_ = tables_->room_changes.total();
  for (WaitingRank& rank : waiting) rank.lacks_room = false;
  ServeThoseWhoComeAgain();
  for (size_t i = 0; i < waiting.size();) {
    const ReserveJob& event = waiting[i].event;
    if (FormerSelfLeaves(event)) {  // the room that it waits for is its own
      ++i;
      continue;
    }
    const auto holds_up = [&](const WaitingRank& other) {
      return other.lacks_room && other.why.id() != ErrorId::kQuotaExceeded &&
             !LetsPass(other, event);
    };
    const bool its_turn =
        !NeedsRoom(event) ||
        std::none_of(waiting.begin(), waiting.begin() + static_cast<ptrdiff_t>(i), holds_up);
    const std::vector<WaitingRank*> passed =
        its_turn ? PassedBy(event, i) : std::vector<WaitingRank*>();
    // While no new jobs are taken, those that wait keep their places.
    if ((!its_turn || tables_->closed) && (event.may_wait || (IsDemoting() && !tables_->closed))) {
      ++i;
      continue;
    }
    Result<Seat*> taken = its_turn ? TakeSeat(event) : Result<Seat*>(waiting[i].why);
    Status why = taken.status();
    const bool at_the_head = its_turn && passed.empty();
    if (!taken.ok() && StaysParked(event, at_the_head, &why)) {
      waiting[i].lacks_room = at_the_head;
      waiting[i++].why = why;
      continue;
    }
    if (taken.ok()) {
      for (WaitingRank* other : passed) other->passed_by.push_back(event.uid);
      ServeFrom(i, **taken);
      continue;
    }
    const WaitingRank refused = std::move(waiting[i]);
    waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
    Refuse(refused.event, why);
  }
  return true;
}

bool JobDesk::ForgetWaiting(ConnectionId connection) {
  const auto gone = [connection](const WaitingRank& rank) {
    return rank.event.connection == connection;
  };
  if (std::erase_if(tables_->waiting, gone) == 0) return false;
  tables_->room_changes.Note(RoomChange::kWaitingLeft);
  return true;
}

void JobDesk::RefuseWaiting(const Status& why) {
  for (const WaitingRank& rank : tables_->waiting) Refuse(rank.event, why);
  tables_->waiting.clear();
}

void JobDesk::ApplyQuotas() {
  // Who has to give up room is chosen by these.
  if (tables_->demotion.active())
    tables_->demotion.Cancel(Status(ErrorId::kSessionEnded, "quotas were changed"), parts_.tier);
  for (const auto& job : tables_->jobs) {
    const std::string account = tables_->quotas.AccountOf(job->spec().name, job->uid);
    job->SetQuota(account, tables_->quotas.QuotaFor(job->spec().name, job->uid));
  }
  for (WaitingRank& rank : tables_->waiting) {
    rank.account = tables_->quotas.AccountOf(rank.event.spec->name, rank.event.uid);
    rank.priority = tables_->quotas.QuotaFor(rank.event.spec->name, rank.event.uid).priority;
  }
  const auto before = [](const WaitingRank& one, const WaitingRank& other) {
    return one.priority > other.priority;
  };
  std::stable_sort(tables_->waiting.begin(), tables_->waiting.end(), before);
  tables_->room_changes.Note(RoomChange::kQuotas);
}

}  // namespace tidepool::memserver

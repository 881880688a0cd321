// The part of JobDesk about room that detached jobs give up: their states go to NVMe when a rank
// that asks for a seat needs it (decision 023). The rank is in the queue meanwhile, also where it
// does not wait for jobs to end.
#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/point.h"
#include "memserver/jobs/job_desk.h"
#include "memserver/jobs/snapshot_builder.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

// Empty: they may move, now or as soon as the job is at rest, which it will be.
std::string JobDesk::WhyNotMovable(const Job& job) const {
  const JobStates& states = *job.states;
  if (job.phase == JobPhase::kRemoving) return "is ending";
  if (job.phase != JobPhase::kOpen || job.HasRanks()) return "has ranks";
  if (!states.weights_ready()) return "has no weights yet";
  if (states.uses_gpus()) return "has states on a GPU";
  if (states.demoted() > 0 || states.chunks_on_host() == 0) return "has its states on NVMe already";
  if (!shm::MaySpill(job.spec())) return "has no states that may lie there";
  if (!job.waiting_saves.empty() || !job.running_saves.empty()) return "is being saved";
  if (parts_.clock->NowNs() < job.demotable_ns)
    return "could not be moved (" + job.demotion_failure.what() + ")";
  const bool kept = parts_.tier != nullptr && tables_->demotion.job() != job.id &&
                    parts_.tier->HasRanges(DemotedKey(job.nonce));
  if (kept) return "has states that a drive may still write";
  // Whether such an update ends is for an admin, or a drive, to say.
  if (!job.AtRest() && (job.suspended || states.spills())) return "is being updated";
  return "";
}

bool JobDesk::WouldFit(const ReserveJob& event, const Newcomer::Then& then) const {
  Ledger ledger = then.ledger;
  Demand demand = DemandOf(event);
  if (!AdmitRun(ledger, demand).ok() || !AdmitFrozen(&ledger, demand).ok()) return false;
  Result<Placement> placement = Place(*event.spec, ledger, then.nvme_free, &demand);
  if (!placement.ok() || !AdmitJob(ledger, demand).ok()) return false;
  std::vector<Extent> released;
  for (const auto& job : tables_->jobs) {
    const bool moves = job->id == tables_->demotion.job() ||
                       std::find(then.moved.begin(), then.moved.end(), job->id) != then.moved.end();
    if (moves) job->states->AddMovable(&released);
  }
  return JobStates::FindsRuns(event.spec, parts_.pool, *placement, released);
}

Movable JobDesk::MovableOf(const Job& job) const {
  return {.job = job.id,
          .priority = job.quota.priority,
          .detached_ns = job.detached_ns,
          .spec = &job.spec(),
          .on_host = job.states->chunks_on_host(),
          .why_not = WhyNotMovable(job)};
}

DemotionChoice JobDesk::ChooseAlone(const Job& job) const {
  const Newcomer nobody{.account = job.account,
                        .priority = job.quota.priority,
                        .fits = [](const Newcomer::Then& then) { return !then.moved.empty(); }};
  return ChooseDemotions(BuildLedger(parts_, options_, *tables_), {MovableOf(job)},
                         parts_.tier->LargestFree(), nobody);
}

// What is under way counts as done.
DemotionChoice JobDesk::ChooseFor(const ReserveJob& event) const {
  Ledger ledger = BuildLedger(parts_, options_, *tables_);
  std::vector<Movable> jobs;
  for (const auto& job : tables_->jobs) {
    if (tables_->demotion.job() == job->id) {
      for (Holding& holding : ledger.holdings)
        holding.pool_bytes -= holding.id == job->id ? job->states->movable_bytes() : 0;
      continue;
    }
    jobs.push_back(MovableOf(*job));
  }
  Newcomer newcomer;
  newcomer.account = tables_->quotas.AccountOf(event.spec->name, event.uid);
  newcomer.priority = tables_->quotas.QuotaFor(event.spec->name, event.uid).priority;
  newcomer.fits = [this, &event](const Newcomer::Then& then) { return WouldFit(event, then); };
  return ChooseDemotions(std::move(ledger), std::move(jobs), parts_.tier->LargestFree(), newcomer);
}

// A rank that was denied a seat for want of room: is some made for it? Else `why` also says what
// could not be had that way.
bool JobDesk::MakesRoom(const ReserveJob& event, bool its_turn, Status* why) {
  const bool of_memory = why->id() == ErrorId::kPoolFull || why->id() == ErrorId::kQuotaExceeded;
  if (parts_.tier == nullptr || !of_memory || tables_->draining || tables_->closed) return false;
  if (tables_->live.states_on == StatesOn::kHost || tables_->FindJob(event.spec->name) != nullptr)
    return false;
  if (!its_turn) return IsDemoting();
  // It lacks something else.
  if (!AdmitRun(BuildLedger(parts_, options_, *tables_), DemandOf(event)).ok()) return false;
  const DemotionChoice choice = ChooseFor(event);
  const auto add = [why](const std::string& text) {
    *why = Status(*why).Why(why->why().empty() ? text : why->why() + "; " + text);
  };
  if (tables_->demotion.active() && (choice.fits || !choice.jobs.empty())) return true;
  if (tables_->demotion_for == event.connection)
    tables_->demotion.Cancel(WhyDropped(), parts_.tier);
  if (choice.jobs.empty()) {
    if (!choice.why_not.empty()) add("moving states to NVMe makes no room: " + choice.why_not);
    return false;
  }
  Job* job = tables_->FindJob(choice.jobs.front());
  tables_->to_demote = job->AtRest() ? 0 : job->id;
  Status reserved;
  if (tables_->to_demote != 0 || BeginDemotion(job, event.connection, &reserved)) return true;
  add(reserved.what());
  return false;
}

// From here on the ledger counts what the job holds in both places.
bool JobDesk::BeginDemotion(Job* job, ConnectionId connection, Status* why) {
  JobStates& states = *job->states;
  auto plan = PlanMove(job->spec(), states.chunks_on_host(), parts_.tier->LargestFree());
  std::vector<uint64_t> offsets;
  if (!plan || !parts_.tier->ReserveRanges(DemotedKey(job->nonce), plan->nvme_bytes, &offsets)) {
    *why = Status(ErrorId::kNvmeFull,
                  "the NVMe directories have no room for the states of " + job->spec().name);
    return false;
  }
  uint64_t nvme_bytes = 0;
  for (const uint64_t bytes : plan->nvme_bytes) nvme_bytes += bytes;
  states.HoldRanges(nvme_bytes);
  tables_->demotion.Begin({job->id, std::move(*plan), std::move(offsets)}, states,
                          parts_.clock->NowNs());
  tables_->demotion_for = connection;
  TP_POINT("server.demotion_begun");
  LogInfo("states of a job without ranks go to NVMe", {{"job", job->id},
                                                       {"name", job->spec().name},
                                                       {"pool_bytes", states.movable_bytes()},
                                                       {"nvme_bytes", nvme_bytes}});
  return true;
}

Status JobDesk::WhyDropped() const {
  const Job* job = tables_->FindJob(tables_->demotion.job());
  if (job == nullptr || job->phase != JobPhase::kOpen)
    return Status(ErrorId::kSessionEnded, "the job ends");
  if (job->HasRanks()) return Status(ErrorId::kSessionEnded, "a rank of it has come back");
  return Status(ErrorId::kSessionEnded, "nobody needs its room any more");
}

bool JobDesk::TendDemotion() {
  Demotion& demotion = tables_->demotion;
  if (tables_->to_demote != 0) {
    const Job* job = tables_->FindJob(tables_->to_demote);
    const bool waits_on = job != nullptr && !job->AtRest() && WhyNotMovable(*job).empty() &&
                          !tables_->waiting.empty();
    if (waits_on) return false;
    tables_->to_demote = 0;
    tables_->room_changes.Note(RoomChange::kNotToDemote);  // whoever waits for it chooses again
  }
  if (!demotion.active()) return false;
  const Job* job = tables_->FindJob(demotion.job());
  const auto waits = [this](const WaitingRank& rank) {
    return rank.event.connection == tables_->demotion_for;
  };
  const bool is_waited_for =
      !tables_->closed && std::any_of(tables_->waiting.begin(), tables_->waiting.end(), waits);
  const bool wanted = !tables_->draining && (tables_->demotion_asked || is_waited_for);
  if (!wanted || job->phase != JobPhase::kOpen || job->HasRanks())
    demotion.Cancel(WhyDropped(), parts_.tier);
  const bool worked = demotion.Progress(parts_.tier, *job->states);
  return EndDemotion() || worked;
}

// One that is ready is believed from here on, and not before; one that failed has changed nothing.
bool JobDesk::EndDemotion() {
  Demotion& demotion = tables_->demotion;
  if (!demotion.ready() && !demotion.failed()) return false;
  Job* job = tables_->FindJob(demotion.job());
  JobStates& states = *job->states;
  const uint64_t bytes = states.movable_bytes();
  const double seconds =
      static_cast<double>(parts_.clock->NowNs() - demotion.began_ns()) / kNsPerSecond;
  if (demotion.ready()) {
    states.MoveOut(demotion.order().plan, demotion.order().offsets);
    ++tables_->counters.demotions;
    tables_->counters.demoted_bytes += bytes;
    LogInfo("states of a job lie on NVMe now, it goes on there when its ranks come back",
            {{"job", job->id},
             {"name", job->spec().name},
             {"pool_bytes_freed", bytes},
             {"nvme_bytes", states.nvme_total()},
             {"seconds", seconds}});
  } else {
    const bool dropped = demotion.why().id() == ErrorId::kSessionEnded;
    ++(dropped ? tables_->counters.demotions_dropped : tables_->counters.demotions_failed);
    parts_.tier->Remove(DemotedKey(job->nonce));
    states.HoldRanges(0);
    if (!dropped) {
      job->demotable_ns = parts_.clock->NowNs() + kDemotionPauseNs;
      job->demotion_failure = demotion.why();
    }
    const std::string why = demotion.why().Line();
    if (dropped)
      LogInfo("states of a job stay on the host",
              {{"job", job->id}, {"name", job->spec().name}, {"why", why}});
    if (!dropped) {
      LogError("states of a job could not be moved to NVMe: they stay on the host",
               {{"job", job->id},
                {"name", job->spec().name},
                {"why", why},
                {"fix", "look at the kernel log for this drive"}});
    }
  }
  demotion.End();
  tables_->demotion_asked = false;
  TP_POINT("server.demotion_ended");
  // The end of a job makes more room than its states.
  if (job->phase != JobPhase::kRemoving) tables_->room_changes.Note(RoomChange::kDemotionEnded);
  return true;
}

}  // namespace tidepool::memserver

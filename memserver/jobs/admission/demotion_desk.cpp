#include "memserver/jobs/admission/demotion_desk.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/buggify.h"
#include "base/hot.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/limits.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

// Empty: the states may move, now or as soon as the job is at rest (which it will be).
std::string DemotionDesk::WhyNotMovable(const Job& job) const {
  const JobStates& states = *job.states;
  if (job.phase == JobPhase::kRemoving) return "is ending";
  if (job.phase != JobPhase::kOpen || job.HasRanks()) return "has ranks";
  if (!states.weights_ready()) return "has no weights yet";
  if (states.uses_gpus()) return "has states on a GPU";
  if (states.demoted() > 0 || states.chunks_on_host() == 0) return "has its states on NVMe already";
  if (!shm::MaySpill(job.spec())) return "has no states that may lie there";

  if (!job.waiting_saves.empty() || !job.running_saves.empty() || !job.running_steps.empty())
    return "is being saved";
  if (context_.neighbours.clock->NowNs() < job.demotable_ns)
    return "could not be moved (" + job.demotion_failure.what() + ")";
  const bool kept = context_.neighbours.tier != nullptr && mover_.job() != job.id &&
                    context_.neighbours.tier->HasRanges(DemotedKey(job.nonce));
  if (kept) return "has states that a drive may still write";
  // Only an admin or a drive decides whether such an update ends.
  if (!job.AtRest() && (job.suspended || states.spills())) return "is being updated";
  return "";
}

bool DemotionDesk::WouldFit(const ReserveJob& event, const Newcomer::Then& then) const {
  Ledger ledger = then.ledger;
  Demand demand = admission_->DemandOf(event);
  if (!AdmitRun(ledger, demand).ok() || !AdmitFrozen(&ledger, demand).ok()) return false;
  Result<Placement> placement = admission_->Place(*event.spec, ledger, then.nvme_free, &demand);
  if (!placement.ok() || !AdmitJob(ledger, demand).ok()) return false;

  std::vector<Extent> released;
  for (const auto& job : context_.tables->jobs) {
    const bool moves = job->id == mover_.job() ||
                       std::find(then.moved.begin(), then.moved.end(), job->id) != then.moved.end();
    if (moves) job->states->placement().AddMovable(&released);
  }
  return JobStates::FindsRuns(event.spec, context_.neighbours.pool, *placement, released);
}

Movable DemotionDesk::MovableOf(const Job& job) const {
  return {.job = job.id,
          .priority = job.quota.priority,
          .detached_ns = job.detached_ns,
          .spec = &job.spec(),
          .on_host = job.states->chunks_on_host(),
          .why_not = WhyNotMovable(job)};
}

DemotionChoice DemotionDesk::ChooseAlone(const Job& job) const {
  const Newcomer nobody{.account = job.account,
                        .priority = job.quota.priority,
                        .fits = [](const Newcomer::Then& then) { return !then.moved.empty(); }};
  return ChooseDemotions(admission_->CurrentLedger(), {MovableOf(job)},
                         context_.neighbours.tier->LargestFree(), nobody);
}

// A demotion under way counts as done.
DemotionChoice DemotionDesk::ChooseFor(const ReserveJob& event) const {
  Ledger ledger = admission_->CurrentLedger();
  std::vector<Movable> jobs;
  for (const auto& job : context_.tables->jobs) {
    if (mover_.job() == job->id) {
      for (Holding& holding : ledger.holdings)
        holding.pool_bytes -= holding.id == job->id ? job->states->movable_bytes() : 0;
      continue;
    }
    jobs.push_back(MovableOf(*job));
  }

  Newcomer newcomer;
  newcomer.account = context_.tables->quotas.AccountOf(event.spec->name, event.uid);
  newcomer.priority = context_.tables->quotas.QuotaFor(event.spec->name, event.uid).priority;
  newcomer.fits = [this, &event](const Newcomer::Then& then) { return WouldFit(event, then); };
  return ChooseDemotions(std::move(ledger), std::move(jobs),
                         context_.neighbours.tier->LargestFree(), newcomer);
}

bool DemotionDesk::MakesRoom(const ReserveJob& event, bool its_turn, Status* why) {
  const bool of_memory = why->id() == ErrorId::kPoolFull || why->id() == ErrorId::kQuotaExceeded;
  if (context_.neighbours.tier == nullptr || !of_memory || context_.tables->draining ||
      context_.settings.closed())
    return false;
  if (context_.settings.live().states_on == StatesOn::kHost ||
      context_.tables->FindJob(event.spec->name) != nullptr)
    return false;
  if (!its_turn) return busy();

  // The rank lacks something else than pool memory.
  if (!AdmitRun(admission_->CurrentLedger(), admission_->DemandOf(event)).ok()) return false;
  const DemotionChoice choice = ChooseFor(event);
  const auto add = [why](const std::string& text) {
    *why = Status(*why).Why(why->why().empty() ? text : why->why() + "; " + text);
  };

  if (mover_.active() && (choice.fits || !choice.jobs.empty())) return true;
  if (for_rank_ == event.connection) mover_.Cancel(WhyDropped());
  if (choice.jobs.empty()) {
    if (!choice.why_not.empty()) add("moving states to NVMe makes no room: " + choice.why_not);
    return false;
  }

  Job* job = context_.tables->FindJob(choice.jobs.front());
  to_demote_ = job->AtRest() ? 0 : job->id;
  Status reserved;
  if (to_demote_ != 0 || Begin(job, event.connection, &reserved)) return true;
  add(reserved.what());
  return false;
}

// From here on the ledger counts what the job holds in both places.
bool DemotionDesk::Begin(Job* job, ConnectionId connection, Status* why) {
  JobStates& states = *job->states;
  auto plan =
      PlanMove(job->spec(), states.chunks_on_host(), context_.neighbours.tier->LargestFree());
  std::vector<uint64_t> offsets;
  if (!plan || !context_.neighbours.tier->ReserveRanges(DemotedKey(job->nonce), plan->nvme_bytes,
                                                        &offsets)) {
    *why = Status(ErrorId::kNvmeFull,
                  "the NVMe directories have no room for the states of " + job->spec().name);
    return false;
  }

  uint64_t nvme_bytes = 0;
  for (const uint64_t bytes : plan->nvme_bytes) nvme_bytes += bytes;
  states.placement().HoldRanges(nvme_bytes);
  mover_.Begin({job->id, std::move(*plan), std::move(offsets)}, states,
               context_.neighbours.clock->NowNs());

  for_rank_ = connection;
  TP_POINT("server.demotion_begun");
  LogInfo("states of a job without ranks go to NVMe", {{"job", job->id},
                                                       {"name", job->spec().name},
                                                       {"pool_bytes", states.movable_bytes()},
                                                       {"nvme_bytes", nvme_bytes}});
  return true;
}

Status DemotionDesk::WhyDropped() const {
  const Job* job = context_.tables->FindJob(mover_.job());
  if (job == nullptr || job->phase != JobPhase::kOpen)
    return Status(ErrorId::kSessionEnded, "the job ends");
  if (job->HasRanks()) return Status(ErrorId::kSessionEnded, "a rank of it has come back");
  return Status(ErrorId::kSessionEnded, "nobody needs its room any more");
}

TP_HOT bool DemotionDesk::Poll(std::span<const WaitingRank> waiting) {
  if (to_demote_ != 0) {
    const Job* job = context_.tables->FindJob(to_demote_);
    const bool waits_on =
        job != nullptr && !job->AtRest() && WhyNotMovable(*job).empty() && !waiting.empty();
    if (waits_on) return false;
    to_demote_ = 0;
    context_.room_changes->Note(RoomChange::kNotToDemote);  // the waiting rank chooses again
  }
  if (!mover_.active()) return false;

  const Job* job = context_.tables->FindJob(mover_.job());
  const auto waits = [this](const WaitingRank& rank) { return rank.event.connection == for_rank_; };

  const bool is_waited_for =
      !context_.settings.closed() && std::any_of(waiting.begin(), waiting.end(), waits);
  const bool wanted = !context_.tables->draining && (asked_by_admin_ || is_waited_for);
  if (!wanted || job->phase != JobPhase::kOpen || job->HasRanks()) mover_.Cancel(WhyDropped());
  const bool worked = mover_.Progress(context_.neighbours.tier, *job->states);
  return End() || worked;
}

// A ready demotion counts from here on, and not before; a failed one has changed nothing.
bool DemotionDesk::End() {
  if (!mover_.ready() && !mover_.failed()) return false;
  Job* job = context_.tables->FindJob(mover_.job());
  if (mover_.ready() && !Commit(job)) return true;
  if (mover_.failed()) Drop(job);
  mover_.End();
  asked_by_admin_ = false;
  TP_POINT("server.demotion_ended");
  // The end of a job frees more room than its states.
  if (job->phase != JobPhase::kRemoving) context_.room_changes->Note(RoomChange::kDemotionEnded);
  return true;
}

// Commits a part of it each turn. True when all of it is done.
bool DemotionDesk::Commit(Job* job) {
  JobStates& states = *job->states;
  const uint64_t bytes = states.movable_bytes();
  if (!states.has_move_out()) states.BeginMoveOut(mover_.order().plan, mover_.order().offsets);
  const uint32_t rows = TP_PLANTED("jobs.demoted_in_one_turn") ? UINT32_MAX : kMovedRowsPerTurn;
  const bool done = states.MoveOutMore(TP_BUGGIFY("desk.move_out_slowly") ? 1 : rows);
  if (done || states.is_moving_out()) mover_.NoteCommitted();
  if (!done) return false;

  const double seconds =
      static_cast<double>(context_.neighbours.clock->NowNs() - mover_.began_ns()) / kNsPerSecond;
  ++context_.tables->counters.demotions;
  context_.tables->counters.demoted_bytes += bytes;

  LogInfo("states of a job lie on NVMe now, it goes on there when its ranks come back",
          {{"job", job->id},
           {"name", job->spec().name},
           {"pool_bytes_freed", bytes},
           {"nvme_bytes", states.nvme_total()},
           {"seconds", seconds}});
  return true;
}

void DemotionDesk::Drop(Job* job) {
  const bool cancelled = mover_.why().id() == ErrorId::kSessionEnded;
  Counters& counters = context_.tables->counters;
  ++(cancelled ? counters.demotions_dropped : counters.demotions_failed);
  context_.neighbours.tier->Remove(DemotedKey(job->nonce));
  job->states->placement().HoldRanges(0);
  if (job->states->has_move_out()) job->states->DropMoveOut();

  const std::string why = mover_.why().Line();
  if (cancelled) {
    LogInfo("states of a job stay on the host",
            {{"job", job->id}, {"name", job->spec().name}, {"why", why}});
    return;
  }

  job->demotable_ns = context_.neighbours.clock->NowNs() + kDemotionPauseNs;
  job->demotion_failure = mover_.why();
  LogError("states of a job could not be moved to NVMe: they stay on the host",
           {{"job", job->id},
            {"name", job->spec().name},
            {"why", why},
            {"fix", "look at the kernel log for this drive"}});
}

void DemotionDesk::Cancel(const Status& why) {
  if (mover_.active()) mover_.Cancel(why);
}

Status DemotionDesk::Evict(Job* job) {
  const std::string& name = job->spec().name;
  if (busy())
    return Status(ErrorId::kJobBusy, "states of another job are on their way to NVMe")
        .Fix("ask again when they are there");
  const DemotionChoice choice = ChooseAlone(*job);
  if (choice.jobs.empty())
    return Status(ErrorId::kJobBusy, "the states of job " + name + " do not move to NVMe")
        .Why(choice.why_not);
  if (!job->AtRest())
    return Status(ErrorId::kJobBusy, "the last step of job " + name + " is being updated")
        .Fix("ask again in a moment");

  Status reserved;
  if (!Begin(job, 0, &reserved)) return reserved;
  asked_by_admin_ = true;
  return Status();
}

}  // namespace tidepool::memserver

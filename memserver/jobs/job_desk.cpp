#include "memserver/jobs/job_desk.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/hot.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/job_recovery.h"
#include "memserver/jobs/recovery/given_up.h"
#include "memserver/jobs/unwritten_states.h"

namespace tidepool::memserver {

JobDesk::JobDesk(const LoopNeighbours& neighbours, const LoopOptions& options, Tables* tables)
    : neighbours_(neighbours),
      options_(options),
      tables_(tables),
      settings_(options.live, options.config),
      log_(neighbours.clock),
      // First what the components read, then the components, each after those that it uses.
      context_{neighbours_, options_, tables, settings_, &room_changes_, &log_},
      gpu_shares_(context_),
      admission_(context_, &gpu_shares_),
      demotions_(context_, &admission_),
      queue_(context_, &admission_, &demotions_),
      life_(context_, &gpu_shares_, &demotions_),
      slots_(context_, &gpu_shares_, &life_),
      saves_(context_),
      steps_(context_),
      commands_(context_, {&settings_, &queue_, &demotions_, &slots_, &life_}),
      snapshots_(context_, {queue_.waiting(), demotion()}) {}

void JobDesk::Handle(ControlEvent event) {
  std::visit([this](auto& e) { On(std::move(e)); }, event);
}

// Drops the session of a process that gave its slot up while no server was there, and now starts
// anew. The process lives, so nothing else would report the old session as lost.
void JobDesk::DropStaleIncarnation(const ReserveJob& event) {
  Job* job = tables_->FindJob(event.spec->name);
  if (job == nullptr || job->uid != event.uid || event.rank >= job->slots.size() ||
      !job->IsAwaited(event.rank))
    return;
  const RankRecord& awaited = job->states->record().ranks[event.rank];
  const bool is_itself =
      event.pid > 0 && awaited.pid == event.pid && awaited.process_start == event.process_start;
  if (is_itself && job->NonceOf(event.rank) != event.nonce)
    life_.LoseAwaited(job, event.rank, "its process begins anew");
}

void JobDesk::On(ReserveJob event) {
  DropStaleIncarnation(event);
  queue_.Reserve(std::move(event));
}

void JobDesk::On(const ResumeSession& event) {
  Result<SessionSlot*> taken = admission_.TakeSlotAgain(event);
  taken.ok() ? admission_.GrantAgain(**taken) : admission_.RefuseAgain(event, taken.status());
}

void JobDesk::On(const Goodbye& event) {
  saves_.Forget(event.connection);
  steps_.Forget(event.connection);
  if (SessionSlot* slot = tables_->FindSlot(event.connection))
    slots_.Leave(slot, Leaving::kGoodbye, Status());
}

void JobDesk::On(const ConnectionLost& event) {
  saves_.Forget(event.connection);
  steps_.Forget(event.connection);
  slots_.EndZeroing(event.connection);
  if (queue_.Forget(event.connection)) return;
  SessionSlot* slot = tables_->FindSlot(event.connection);
  if (slot == nullptr) return;

  if (event.ours && slots_.AwaitAgain(slot)) return;
  log_.Tell(slot->job->uid, LogLevel::kWarn, "rank lost",
            {{"job", slot->job->id}, {"rank", slot->rank}, {"cause", event.cause}});
  ++tables_->counters.sessions_ended_badly;
  if (slot->job->step.HasEnded(slot->rank) && TP_PLANTED("jobs.dead_slot_kept")) return;
  slots_.Leave(slot, Leaving::kLost, Status(ErrorId::kSessionEnded, "the connection was lost"));
}

void JobDesk::On(const AwaitedRankLost& event) {
  if (TP_PLANTED("jobs.awaited_loss_ignored")) return;
  Job* job = tables_->FindJob(event.job);
  if (job == nullptr || event.rank >= job->slots.size() || !job->IsAwaited(event.rank) ||
      job->NonceOf(event.rank) != event.nonce)
    return;
  life_.LoseAwaited(job, event.rank, "its process has ended");
}

void JobDesk::On(DeclareSchedule event) {
  SessionSlot* slot = tables_->FindSlot(event.connection);
  if (slot == nullptr) return;
  slot->job->updates.SetOrder(std::move(event.order));
}

// Takes up the jobs that waited for these servers. Their ranks were told to try again.
void JobDesk::On(const FormerServersEnded& event) {
  neighbours_.index->ForgetServers(event.servers);
  if (!tables_->draining) {
    tables_->frozen->ForgetServers(event.servers);
    GiveWithheld(neighbours_, event.servers, tables_);
    room_changes_.Note(RoomChange::kJobTakenUp);
  }
  TP_POINT("server.former_forgotten");
  for (size_t i = 0; i < tables_->set_aside.size();) {
    SetAside& aside = tables_->set_aside[i];
    const bool waited = aside.waits_for != 0;
    // While this server hands over, the next one takes them up.
    if (!tables_->draining) aside.waits_for &= ~event.servers;
    if (!waited || aside.waits_for != 0) {
      ++i;
      continue;
    }

    Job* job = TakeUp(neighbours_, std::move(aside), tables_);
    tables_->set_aside.erase(tables_->set_aside.begin() + static_cast<ptrdiff_t>(i));
    room_changes_.Note(RoomChange::kJobTakenUp);
    if (IsOver(*job)) life_.BeginRemoval(job);
    TP_POINT("server.job_taken_up");
  }
  ApplyQuotas();
}

void JobDesk::On(const StopServing& event) {
  tables_->draining = true;
  tables_->restarting = event.hand_over;
  queue_.RefuseAll(tables_->WhyStopping());
  const auto goes_on = [](const auto& job) { return job->phase == JobPhase::kOpen; };
  const bool any_goes_on = std::any_of(tables_->jobs.begin(), tables_->jobs.end(), goes_on) ||
                           !tables_->set_aside.empty();
  tables_->handing_over = event.hand_over && any_goes_on;
  // The jobs stay as they are. PollJobs ends the loop when the work in hand is done.
  if (tables_->handing_over) return;

  slots_.ExpelEverybody(tables_->WhyStopping());
  for (const auto& job : tables_->jobs) life_.BeginRemoval(job.get());
}

// Hands over to another server: the loop ends as soon as the workers have finished what they hold.
bool JobDesk::EndHandOver() {
  const bool at_work = std::any_of(tables_->jobs.begin(), tables_->jobs.end(), [](const auto& job) {
    return job->work_at_team > 0 || job->IsMoving();
  });
  const bool copying = std::any_of(
      tables_->slots.begin(), tables_->slots.end(),
      [](const auto& slot) { return slot->session != nullptr && slot->session->MustDrain(); });
  if (tables_->stopped || at_work || copying || tables_->scrub.moving() || demotion().moving())
    return false;
  Stop();
  return true;
}

// Requires that nothing this server has begun is under way.
void JobDesk::Stop() {
  tables_->stopped = true;
  neighbours_.index->ForgetServers(neighbours_.own_server);
  context_.Send(Stopped{});
}

TP_HOT bool JobDesk::PollJob(Job* job) {
  bool worked = life_.PollAwaited(job);
  worked |= SettleUnwritten(context_, job);
  worked |= slots_.EndFailed(job);
  if (life_.Make(job)) {
    if (job->phase == JobPhase::kOpen) slots_.AttachHeld(job);
    worked = true;
  }
  worked |= life_.EndLease(job);
  return saves_.Poll(job) || worked;
}

TP_HOT bool JobDesk::PollJobs() {
  bool worked = demotions_.Poll(queue_.waiting());
  if (tables_->handing_over) return EndHandOver() || worked;
  worked |= queue_.Poll();
  worked |= settings_.PollLogLevel(neighbours_.clock->NowNs());
  if (tables_->frozen->uploading())
    worked |= tables_->frozen->PollUploads(neighbours_.clock->NowNs());

  if (tables_->frozen->ReleaseMore(FrozenTable::kRowsPerTurn)) {
    room_changes_.Note(RoomChange::kJobRemoved);
    worked = true;
  }

  for (size_t i = 0; i < tables_->jobs.size();) {
    Job* job = tables_->jobs[i].get();
    worked |= PollJob(job);
    const bool erased = life_.EraseIfUnused(job);
    worked = worked || erased;
    if (!erased) ++i;
  }

  if (tables_->draining && !tables_->stopped && tables_->jobs.empty() && !tables_->scrub.moving()) {
    Stop();
    worked = true;
  }
  return worked;
}

TP_HOT bool JobDesk::PollSnapshot() {
  if (!snapshots_.asked()) return false;
  if (auto built = snapshots_.Progress()) context_.Send(SnapshotReady{std::move(built)});
  return true;
}

}  // namespace tidepool::memserver

// The second half of JobDesk: how seats and jobs go.
#include <algorithm>
#include <string>
#include <utility>

#include "base/buggify.h"
#include "base/check.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"
#include "memserver/jobs/job_desk.h"
#include "memserver/jobs/job_lease.h"

namespace tidepool::memserver {
namespace {

constexpr uint32_t kViolationLinesPerWindow = 60;

// Nobody but the table knows the job any more.
bool IsUnused(const Job& job) {
  const bool at_work = job.work_at_team > 0 || job.IsMoving();
  return !job.HasSeats() && (!at_work || TP_PLANTED("jobs.removed_under_work")) &&
         job.running_saves.empty();
}

void StopWatching(WakeSet* wake_set, Session* session) {
  wake_set->Remove(session->port().doorbell_fd());
  const int stream_fd = session->lane().event_fd();
  if (stream_fd >= 0) wake_set->Remove(stream_fd);
}

}  // namespace

void JobDesk::On(Goodbye event) {
  if (Seat* seat = tables_->FindSeat(event.connection))
    LeaveSeat(seat, Leaving::kGoodbye, Status());
}

// The control side tells one or the other of each rank that was granted a seat, and only when it no
// longer touches the memory.
void JobDesk::EndZeroing(ConnectionId connection) {
  for (const auto& job : tables_->jobs) job->being_zeroed &= job->zeroing_connection != connection;
}

void JobDesk::On(ConnectionLost event) {
  EndZeroing(event.connection);
  if (ForgetWaiting(event.connection)) return;
  Seat* seat = tables_->FindSeat(event.connection);
  if (seat == nullptr) return;
  if (event.ours && AwaitAgain(seat)) return;
  Tell(seat->job->uid, LogLevel::kWarn, "rank lost",
       {{"job", seat->job->id}, {"rank", seat->rank}, {"cause", event.cause}});
  ++tables_->counters.sessions_ended_badly;
  if (seat->job->step.HasEnded(seat->rank) && TP_PLANTED("jobs.dead_seat_kept")) return;
  LeaveSeat(seat, Leaving::kLost, Status(ErrorId::kSessionEnded, "the connection was lost"));
}

// What a rank hears whose job does not go on here: where another server is to follow, it may wait
// for that one.
Status JobDesk::WhyStopping() const {
  if (tables_->restarting)
    return Status(ErrorId::kNotReady, "memserver is being replaced by another one");
  return Status(ErrorId::kSessionEnded, "memserver is stopping");
}

void JobDesk::On(StopServing event) {
  tables_->draining = true;
  tables_->restarting = event.hand_over;
  RefuseWaiting(WhyStopping());
  const auto goes_on = [](const auto& job) { return job->phase == JobPhase::kOpen; };
  const bool any_goes_on = std::any_of(tables_->jobs.begin(), tables_->jobs.end(), goes_on) ||
                           !tables_->set_aside.empty();
  tables_->handing_over = event.hand_over && any_goes_on;
  // The jobs stay as they are; TendJobs ends the loop when the work in hand is done.
  if (tables_->handing_over) return;
  const auto stays = [](const auto& seat) { return !seat->leaving; };
  for (;;) {
    const auto last = std::find_if(tables_->seats.rbegin(), tables_->seats.rend(), stays);
    if (last == tables_->seats.rend()) break;
    LeaveSeat(last->get(), Leaving::kExpelled, WhyStopping());
  }
  for (const auto& job : tables_->jobs) BeginRemoval(job.get());
}

// Ends the data-plane part of a seat: nothing of it is read or written any more afterwards.
void JobDesk::CloseSession(Seat* seat, ErrorId reason) {
  if (seat->held_port != nullptr) {
    Send(Discard{std::move(seat->held_port), std::move(seat->held_rcache),
                 std::move(seat->held_brought)});
  }
  if (seat->session == nullptr) return;
  Session& session = *seat->session;
  tables_->counters.bytes_h2d += session.bytes_h2d;
  tables_->counters.bytes_d2h += session.bytes_d2h;
  DropSession(seat->job->states.get(), &session);
  if (seat->watched) StopWatching(&tables_->wake_set, &session);
  session.port().End(reason);
  session.PoisonFlags();
  Session::Remains remains = Session::Dissolve(std::move(seat->session));
  Send(Discard{std::move(remains.port), std::move(remains.rcache), std::move(remains.brought)});
}

// Copies on a GPU's streams cannot be dropped: until they have ended the seat stays, with all that
// they read and write. For everybody else it is as if it were left a little later.
void JobDesk::LeaveSeat(Seat* seat, Leaving how, const Status& why) {
  if (seat->leaving) return;
  if (seat->session == nullptr || !seat->session->MustDrain()) return CompleteLeave(seat, how, why);
  seat->leaving = Seat::Departure{how, why};
  seat->violation = nullptr;
}

void JobDesk::CompleteLeave(Seat* seat, Leaving how, const Status& why) {
  Job* job = seat->job;
  const Rank rank = seat->rank;
  const ConnectionId connection = seat->connection;
  TP_POINT("server.seat_leaving");
  CloseSession(seat, how == Leaving::kExpelled ? why.id() : ErrorId::kSessionEnded);
  if (how == Leaving::kExpelled) Send(SessionOver{connection, why});
  std::erase_if(job->waiting_saves,
                [connection](const WaitingSave& save) { return save.connection == connection; });
  job->seats[rank] = nullptr;
  std::erase_if(tables_->seats, [seat](const auto& other) { return other.get() == seat; });
  // Zeroed by nobody now: the bytes of a former job could show through, so the ranks that wait for
  // it start again.
  const bool orphaned = job->phase == JobPhase::kZeroing && job->zeroing_connection == connection;
  LeaveJob(job, rank, how);
  if (how == Leaving::kGoodbye) job->farewells.push_back(connection);
  SendFarewells(job);
  if (!orphaned || job->phase == JobPhase::kRemoving) return;
  BeginRemoval(job);
  const Status lost(ErrorId::kPeerLost,
                    "rank " + std::to_string(rank) + " left before the job was ready");
  for (size_t i = 0; i < job->seats.size(); ++i) {
    if (job->seats[i] != nullptr) LeaveSeat(job->seats[i], Leaving::kExpelled, lost);
  }
}

// A rank that said goodbye is answered when its memory is free. The last one's includes the job's:
// whoever starts the next run then finds the pool as it was.
void JobDesk::SendFarewells(Job* job) {
  if (job->phase == JobPhase::kRemoving) return;
  for (const ConnectionId connection : job->farewells) Send(SessionOver{connection, Status()});
  job->farewells.clear();
}

// A rank has left: the run can seal no further step.
void JobDesk::LeaveJob(Job* job, Rank rank, Leaving how) {
  tables_->room_changes.Note(RoomChange::kRankLeft);
  if (job->IsRecorded() && job->states->weights_ready())
    tables_->lost.Forget(job->spec().name, job->uid);
  if (job->IsRecorded()) {
    JobRecord& record = job->states->record();
    if (how == Leaving::kGoodbye)
      record.ranks_left_well.fetch_or(uint64_t{1} << rank, std::memory_order_release);
    if (how != Leaving::kGoodbye || job->run() == RunState::kWhole) {
      job->SetRun(how == Leaving::kGoodbye ? RunState::kLeft : RunState::kPeerLost);
    }
    TP_POINT("server.run_broken");
    if (!TP_PLANTED("jobs.step_not_abandoned")) AbandonOpenStep(job);
    TP_POINT("server.step_abandoned");
    job->states->ClearRank(rank);
    TP_POINT("server.rank_cleared");
  }
  // A server that ends tells each rank so, and not that its peers were sent away before it.
  if (how != Leaving::kGoodbye && !tables_->draining) {
    for (const Seat* other : job->seats) {
      if (other != nullptr) Send(PeerGone{other->connection, rank});
    }
  }
  if (job->HasRanks() || job->phase == JobPhase::kRemoving) return;
  const bool all_said_goodbye = job->IsRecorded() && job->AllLeftWell();
  const bool worth_keeping =
      job->phase == JobPhase::kOpen && job->states->weights_ready() && options_.times.lease_ns > 0;
  const bool ending = tables_->draining && !tables_->handing_over;
  if (all_said_goodbye || !worth_keeping || ending) {
    if (!all_said_goodbye && !ending)
      NoteLost(*job, "its ranks ended without a goodbye, and --lease keeps no such job",
               &tables_->lost);
    BeginRemoval(job);
    return;
  }
  job->detached_ns = parts_.clock->NowNs();
  Tell(job->uid, LogLevel::kInfo, "job detached, kept for a restart",
       {{"job", job->id}, {"version", job->states->sealed_version()}});
}

void JobDesk::BeginRemoval(Job* job) {
  // While a GPU copies for it, the next server must not give its memory to others.
  const bool stays =
      job->IsRecorded() && job->HasGpuCopies() && !TP_PLANTED("jobs.index_left_under_copies");
  if (stays) job->SetRun(RunState::kOver);
  job->leaves_index |= stays;
  if (job->IsRecorded() && !stays && !TP_PLANTED("jobs.index_slot_left"))
    parts_.index->Remove(job->index_slot);
  TP_POINT("server.job_unrecorded");
  // The next job of this name has no part in what was set for this one.
  if (job->phase != JobPhase::kRemoving) tables_->quotas.ForgetJob(job->spec().name);
  job->phase = JobPhase::kRemoving;
  job->spills.Abandon();
  job->gpus.Abandon();
  job->fill.Abandon();
  job->waiting_saves.clear();
}

bool JobDesk::EraseIfUnused(Job* job) {
  // Nobody takes the room of jobs that end with the server.
  const bool ending = tables_->draining && !tables_->handing_over;
  const bool at_work = tables_->demotion.job() == job->id || (job->being_zeroed && !ending);
  if (job->phase != JobPhase::kRemoving || !IsUnused(*job) || at_work ||
      TP_BUGGIFY("desk.erase_later"))
    return false;
  if (std::exchange(job->leaves_index, false)) parts_.index->Remove(job->index_slot);
  if (!LetGoOfShares(job)) return false;
  Tell(job->uid, LogLevel::kInfo, "job removed", {{"job", job->id}, {"name", job->spec().name}});
  tables_->room_changes.Note(RoomChange::kJobRemoved);
  const std::vector<ConnectionId> farewells = std::move(job->farewells);
  TP_POINT("server.job_removing");
  if (job->states->spills()) parts_.tier->Remove(job->nonce);
  if (job->states->demoted() > 0) parts_.tier->Remove(DemotedKey(job->nonce));
  std::erase_if(tables_->jobs, [job](const auto& other) { return other.get() == job; });
  TP_POINT("server.job_removed");
  for (const ConnectionId connection : farewells) Send(SessionOver{connection, Status()});
  return true;
}

bool JobDesk::ExpelViolators() {
  bool expelled = false;
  for (size_t i = 0; i < tables_->seats.size();) {
    Seat* seat = tables_->seats[i].get();
    // Copies of one that is leaving may still find its ring full.
    if (seat->violation == nullptr || seat->leaving) {
      ++i;
      continue;
    }
    const int64_t now = parts_.clock->NowNs();
    if (now - violation_window_ns_ >= kViolationLogNs) {
      violation_window_ns_ = now;
      violations_in_window_ = 0;
    }
    if (violations_in_window_++ < kViolationLinesPerWindow) {
      LogWarn("a session broke the protocol and was ended",
              {{"job", seat->job->id}, {"rank", seat->rank}, {"why", seat->violation}});
    }
    ++tables_->counters.sessions_ended_badly;
    LeaveSeat(seat, Leaving::kExpelled, Status(ErrorId::kProtocolViolation, seat->violation));
    expelled = true;
    i = 0;  // leaving may have ended other seats as well
  }
  return expelled;
}

// States on NVMe or on a GPU are lost, or the ranges on NVMe cannot be noted for good: the job
// ends, and its ranks hear why. Other jobs go on.
bool JobDesk::EndFailed(Job* job) {
  if (!job->states->spills() && !job->states->uses_gpus()) return false;
  Status why = job->gpus.failure();
  if (why.ok()) why = job->spills.failure();
  if (why.ok()) why = job->fill.failure();
  const bool waits = job->phase == JobPhase::kZeroing && job->states->spills();
  const TierDirectory* poisoned = waits ? parts_.tier->PoisonedOf(*job->states) : nullptr;
  if (poisoned != nullptr)
    why = Status(ErrorId::kNvmeIoFailed, "a flush of the NVMe directory failed")
              .Where(poisoned->path);
  if (why.ok() || job->phase == JobPhase::kRemoving) return false;
  LogError(job->gpus.failure().ok() ? "a job ends: its states on NVMe cannot be used"
                                    : "a job ends: its states on a GPU are lost",
           {{"job", job->id}, {"name", job->spec().name}, {"why", why.Line()}});
  NoteLost(*job, why.Line(), &tables_->lost);
  BeginRemoval(job);
  for (size_t rank = 0; rank < job->seats.size(); ++rank) {
    if (job->seats[rank] != nullptr) LeaveSeat(job->seats[rank], Leaving::kExpelled, why);
  }
  return true;
}

// Another server takes over: the loop ends as soon as the workers have put down what they hold.
bool JobDesk::EndHandOver() {
  const bool at_work = std::any_of(tables_->jobs.begin(), tables_->jobs.end(), [](const auto& job) {
    return job->work_at_team > 0 || job->IsMoving();
  });
  const bool copying = std::any_of(
      tables_->seats.begin(), tables_->seats.end(),
      [](const auto& seat) { return seat->session != nullptr && seat->session->MustDrain(); });
  if (tables_->stopped || at_work || copying || tables_->scrub.moving() ||
      tables_->demotion.moving())
    return false;
  Stop();
  return true;
}

// Nothing that this server has begun is under way.
void JobDesk::Stop() {
  tables_->stopped = true;
  parts_.index->ForgetServers(parts_.own_server);
  Send(Stopped{});
}

bool JobDesk::TendJobs() {
  bool worked = TendDemotion();
  if (tables_->handing_over) return EndHandOver() || worked;
  worked |= ServeWaiting();
  worked |= TendLogLevel();
  if (tables_->frozen->uploading()) worked |= tables_->frozen->Tend(parts_.clock->NowNs());
  for (size_t i = 0; i < tables_->jobs.size();) {
    Job* job = tables_->jobs[i].get();
    worked |= TendAwaited(job);
    worked |= SettleUnwritten(job);
    worked |= EndFailed(job);
    if (OpenIfReady(job)) {
      AttachHeld(job);
      worked = true;
    }
    const std::optional<int64_t> lease_end = LeaseEndNs(*job, options_);
    if (lease_end && parts_.clock->NowNs() >= *lease_end && !TP_PLANTED("jobs.lease_never_ends")) {
      Tell(job->uid, LogLevel::kInfo, "lease of a detached job ended", {{"job", job->id}});
      NoteLost(*job, "it had no ranks for " + FormatNs(options_.times.lease_ns) + ", its lease",
               &tables_->lost);
      BeginRemoval(job);
      worked = true;
    }
    worked |= TendSaves(job);
    const bool erased = EraseIfUnused(job);
    worked = worked || erased;
    if (!erased) ++i;
  }
  if (tables_->draining && !tables_->stopped && tables_->jobs.empty() && !tables_->scrub.moving()) {
    Stop();
    worked = true;
  }
  return worked;
}

}  // namespace tidepool::memserver

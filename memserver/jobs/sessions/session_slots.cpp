#include "memserver/jobs/sessions/session_slots.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/hot.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/job_lease.h"

namespace tidepool::memserver {
namespace {

constexpr uint32_t kViolationLinesPerWindow = 60;

void StopWatching(WakeSet* wake_set, Session* session) {
  wake_set->Remove(session->port().doorbell_fd());
  const int stream_fd = session->lane().event_fd();
  if (stream_fd >= 0) wake_set->Remove(stream_fd);
}

}  // namespace

void SessionSlots::Attach(AttachSession event) {
  EndZeroing(event.connection);
  SessionSlot* slot = context_.tables->FindSlot(event.connection);
  if (slot == nullptr) {  // it ended while the control side prepared its memory
    context_.Send(
        Discard{std::move(event.port), std::move(event.rcache), std::move(event.brought)});
    return;
  }

  if (slot->session != nullptr || slot->held_port != nullptr) {
    Leave(slot, Leaving::kExpelled,
          Status(ErrorId::kProtocolViolation, "a session was attached twice"));
    return;
  }

  slot->held_port = std::move(event.port);
  slot->held_rcache = std::move(event.rcache);
  slot->held_brought = std::move(event.brought);

  Job* job = slot->job;
  if (job->phase == JobPhase::kZeroing && job->zeroing_connection == slot->connection)
    job->zeroed = true;
  life_->Make(job);
  if (job->phase == JobPhase::kOpen) AttachHeld(job);
}

void SessionSlots::AttachHeld(Job* job) {
  for (size_t rank = 0; rank < job->slots.size(); ++rank) {
    SessionSlot* slot = job->slots[rank];
    if (slot != nullptr && slot->held_port != nullptr) Open(slot);
  }
}

Result<std::unique_ptr<Session>> SessionSlots::MakeSession(SessionSlot* slot) {
  if (slot->held_rcache == nullptr || slot->held_rcache->bytes() < slot->rcache_bytes) {
    return Status(ErrorId::kInternal, "the rCache is smaller than granted");
  }
  Session::Parts parts{.id = slot->session_id, .rank = slot->rank};
  if (slot->held_brought.gpu != nullptr) {
    TP_ASSIGN_OR_RETURN(parts.gpu, gpu_shares_->StreamsOf(slot->held_brought.gpu));
    for (const auto& root : context_.tables->roots)
      slot->job->RootShare(root->number(), LaneWay::kToRcache);
  } else {
    TP_ASSIGN_OR_RETURN(parts.stream, context_.neighbours.device->OpenStream());
  }

  parts.port = std::move(slot->held_port);
  parts.rcache = std::move(slot->held_rcache);
  parts.brought = std::move(slot->held_brought);
  return std::make_unique<Session>(std::move(parts));
}

// All that the rank needs to know about its job.
Attached SessionSlots::AnswerTo(const SessionSlot& slot) {
  const JobStates& states = *slot.job->states;
  const StepRecord& step = states.last_step();
  Attached attached{.connection = slot.connection, .session = slot.session_id, .job = slot.job->id};
  attached.job_nonce = slot.job->nonce;
  attached.note = slot.job->note;
  attached.pool_bytes = states.pool_bytes();
  attached.spec = states.shared_spec();

  // Where its run continues.
  attached.weights_ready = states.weights_ready();
  attached.sealed_version = states.sealed_version();
  attached.attempt = states.attempt();
  attached.data_cursor = step.data_cursor;
  attached.loss_scale = step.loss_scale;
  attached.scaler_steps = step.scaler_steps;
  attached.random_state = step.random_state;
  attached.last_skipped = step.skipped != 0;
  return attached;
}

void SessionSlots::Open(SessionSlot* slot) {
  Job* job = slot->job;
  if (slot->held_brought.gpu != nullptr)
    job->states->records().NoteGpus(context_.neighbours.own_server);
  if (const Status taken = gpu_shares_->TakeShare(slot); !taken.ok())
    return Leave(slot, Leaving::kExpelled, taken);

  auto session = MakeSession(slot);
  const ConnectionId connection = slot->connection;
  if (!session.ok() && AwaitAgain(slot))
    return context_.Send(SessionOver{connection, session.status()});
  if (!session.ok()) return Leave(slot, Leaving::kExpelled, session.status());

  slot->session = std::move(session).value();
  slot->session->lane().Record(job->spans, slot->rank);
  job->states->records().SetRank(slot->rank, {slot->nonce, slot->process_start, slot->pid});
  TP_POINT("server.session_attached");
  context_.log->Tell(job->uid, LogLevel::kInfo, "rank attached",
                     {{"job", job->id},
                      {"rank", slot->rank},
                      {"session", slot->session_id},
                      {"version", job->states->sealed_version()},
                      {"nvme_bytes", job->states->nvme_total()}});
  context_.Send(AnswerTo(*slot));
  // The rank may have been away when the others were told.
  if (job->run() == RunState::kPeerLost) context_.Send(PeerGone{connection, job->FirstMissing()});
}

// Ends the data-plane part of a slot: nothing of it is read or written afterwards.
void SessionSlots::Close(SessionSlot* slot, ErrorId reason) {
  if (slot->held_port != nullptr) {
    context_.Send(Discard{std::move(slot->held_port), std::move(slot->held_rcache),
                          std::move(slot->held_brought)});
  }
  if (slot->session == nullptr) return;

  Session& session = *slot->session;
  context_.tables->counters.bytes_h2d += session.bytes_h2d;
  context_.tables->counters.bytes_d2h += session.bytes_d2h;
  DropSession(slot->job->states.get(), &session);
  if (slot->watched) StopWatching(&context_.tables->wake_set, &session);
  session.port().End(reason);
  session.PoisonFlags();
  Session::Remains remains = Session::Dissolve(std::move(slot->session));
  context_.Send(
      Discard{std::move(remains.port), std::move(remains.rcache), std::move(remains.brought)});
}

void SessionSlots::Leave(SessionSlot* slot, Leaving how, const Status& why) {
  if (slot->leaving) return;
  if (slot->session == nullptr || !slot->session->MustDrain()) return CompleteLeave(slot, how, why);
  slot->leaving = SessionSlot::Departure{how, why};
  slot->violation = nullptr;
}

void SessionSlots::CompleteLeave(SessionSlot* slot, Leaving how, const Status& why) {
  Job* job = slot->job;
  const Rank rank = slot->rank;
  const ConnectionId connection = slot->connection;
  TP_POINT("server.slot_leaving");
  Close(slot, how == Leaving::kExpelled ? why.id() : ErrorId::kSessionEnded);
  if (how == Leaving::kExpelled) context_.Send(SessionOver{connection, why});
  std::erase_if(job->waiting_saves,
                [connection](const WaitingSave& save) { return save.connection == connection; });
  Erase(slot);

  // Nobody zeroes the memory now, and bytes of a former job could show through, so the ranks that
  // wait for it start again.
  const bool orphaned = job->phase == JobPhase::kZeroing && job->zeroing_connection == connection;
  life_->NoteRankLeft(job, rank, how);
  if (how == Leaving::kGoodbye) job->farewells.push_back(connection);
  life_->SendFarewells(job);
  if (!orphaned || job->phase == JobPhase::kRemoving) return;
  life_->BeginRemoval(job);
  ExpelAllOf(job, Status(ErrorId::kPeerLost,
                         "rank " + std::to_string(rank) + " left before the job was ready"));
}

void SessionSlots::Erase(SessionSlot* slot) {
  slot->job->slots[slot->rank] = nullptr;
  std::erase_if(context_.tables->slots, [slot](const auto& other) { return other.get() == slot; });
}

void SessionSlots::ExpelAllOf(Job* job, const Status& why) {
  for (size_t rank = 0; rank < job->slots.size(); ++rank) {
    if (job->slots[rank] != nullptr) Leave(job->slots[rank], Leaving::kExpelled, why);
  }
}

void SessionSlots::ExpelEverybody(const Status& why) {
  const auto& slots = context_.tables->slots;
  const auto stays = [](const auto& slot) { return !slot->leaving; };
  for (;;) {
    const auto last = std::find_if(slots.rbegin(), slots.rend(), stays);
    if (last == slots.rend()) return;
    Leave(last->get(), Leaving::kExpelled, why);
  }
}

bool SessionSlots::AwaitAgain(SessionSlot* slot) {
  Job* job = slot->job;
  const Rank rank = slot->rank;
  const bool came_back =
      slot->session == nullptr && job->IsRecorded() && job->NonceOf(rank) == slot->nonce;
  const bool ending = context_.tables->draining && !context_.tables->handing_over;
  if (!came_back || ending || TP_PLANTED("jobs.unserved_is_lost")) return false;

  Close(slot, ErrorId::kSessionEnded);
  Erase(slot);
  job->awaiting_since_ns = context_.neighbours.clock->NowNs();
  const RankRecord& record = job->states->record().ranks[rank];
  context_.Send(AwaitRank{job->id, rank, job->NonceOf(rank), record.pid, record.process_start});
  return true;
}

void SessionSlots::EndZeroing(ConnectionId connection) {
  for (const auto& job : context_.tables->jobs)
    job->being_zeroed &= job->zeroing_connection != connection;
}

void SessionSlots::TellViolation(const SessionSlot& slot) {
  const int64_t now = context_.neighbours.clock->NowNs();
  if (now - violation_window_ns_ >= kViolationLogNs) {
    violation_window_ns_ = now;
    violations_in_window_ = 0;
  }
  if (violations_in_window_++ < kViolationLinesPerWindow) {
    LogWarn("a session broke the protocol and was ended",
            {{"job", slot.job->id}, {"rank", slot.rank}, {"why", slot.violation}});
  }
}

TP_HOT bool SessionSlots::ExpelViolators() {
  bool expelled = false;
  for (size_t i = 0; i < context_.tables->slots.size();) {
    SessionSlot* slot = context_.tables->slots[i].get();
    // Copies for a leaving slot may still find its ring full.
    if (slot->violation == nullptr || slot->leaving) {
      ++i;
      continue;
    }
    TellViolation(*slot);
    ++context_.tables->counters.sessions_ended_badly;
    Leave(slot, Leaving::kExpelled, Status(ErrorId::kProtocolViolation, slot->violation));
    expelled = true;
    i = 0;  // Leave may have ended other slots too
  }
  return expelled;
}

// The GPU has failed: ends the jobs whose states lie there, then the sessions whose copies it made.
void SessionSlots::EndAllOn(const GpuStreams& gpu) {
  const Status why = gpu.status();
  LogError("a GPU failed: the sessions on it end, and jobs whose states lie there",
           {{"gpu", gpu.gpu().device().name()}, {"why", why.Line()}});

  for (const auto& job : context_.tables->jobs) {
    const auto on_it = [&gpu](const GpuShare& share) { return share.gpu == &gpu; };
    if (std::none_of(job->gpus.shares().begin(), job->gpus.shares().end(), on_it)) continue;
    job->gpus.Fail(Status(ErrorId::kStatesLost, "the states of job " + job->spec().name + " on " +
                                                    gpu.gpu().device().name() +
                                                    " are lost: the GPU failed")
                       .Why(why.what()));
    EndFailed(job.get());
  }

  for (size_t i = 0; i < context_.tables->slots.size(); ++i) {
    SessionSlot* slot = context_.tables->slots[i].get();
    if (slot->session == nullptr || slot->session->lane().gpu() != &gpu || slot->leaving) continue;
    ++context_.tables->counters.sessions_ended_badly;
    Leave(slot, Leaving::kExpelled, why);
    i = SIZE_MAX;  // Leave may have ended other slots too
  }
}

TP_HOT bool SessionSlots::PollGpus() {
  // The ranks continue with the next server, on whose GPUs nothing has failed.
  if (context_.tables->gpus.empty() || context_.tables->handing_over) return false;
  bool worked = false;
  for (const auto& gpu : context_.tables->gpus) {
    if (!gpu->failed() || gpu->failure_told) continue;
    gpu->failure_told = worked = true;
    EndAllOn(*gpu);
  }

  for (size_t i = 0; i < context_.tables->slots.size(); ++i) {
    SessionSlot* slot = context_.tables->slots[i].get();
    if (!slot->leaving || slot->session->MustDrain()) continue;
    const SessionSlot::Departure departure = *slot->leaving;
    CompleteLeave(slot, departure.how, departure.why);
    worked = true;
    i = SIZE_MAX;
  }
  return worked;
}

// Ends a job that could not get something that was promised at its admission.
TP_HOT bool SessionSlots::EndUnmade(Job* job) {
  if (job->making_failure.ok() || job->phase == JobPhase::kRemoving) return false;
  LogWarn("a job ends: it cannot be made",
          {{"job", job->id}, {"name", job->spec().name}, {"why", job->making_failure.Line()}});
  life_->BeginRemoval(job);
  ExpelAllOf(job, job->making_failure);
  return true;
}

TP_HOT bool SessionSlots::EndFailed(Job* job) {
  if (EndUnmade(job)) return true;
  if (!job->states->spills() && !job->states->uses_gpus()) return false;
  Status why = job->gpus.failure();
  if (why.ok()) why = job->spills.failure();
  if (why.ok()) why = job->fill.failure();

  const bool waits = job->phase == JobPhase::kZeroing && job->states->spills();
  const TierDirectory* poisoned =
      waits ? context_.neighbours.tier->PoisonedOf(*job->states) : nullptr;
  if (poisoned != nullptr)
    why = Status(ErrorId::kNvmeIoFailed, "a flush of the NVMe directory failed")
              .Where(poisoned->path);
  if (why.ok() || job->phase == JobPhase::kRemoving) return false;

  LogError(job->gpus.failure().ok() ? "a job ends: its states on NVMe cannot be used"
                                    : "a job ends: its states on a GPU are lost",
           {{"job", job->id}, {"name", job->spec().name}, {"why", why.Line()}});
  NoteLost(*job, why.Line(), &context_.tables->lost);
  life_->BeginRemoval(job);
  ExpelAllOf(job, why);
  return true;
}

}  // namespace tidepool::memserver

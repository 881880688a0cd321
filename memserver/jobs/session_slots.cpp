#include "memserver/jobs/session_slots.h"

#include <algorithm>
#include <string>
#include <utility>

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
  Seat* seat = context_.tables->FindSeat(event.connection);
  if (seat == nullptr) {  // it was ended while the control side prepared its memory
    context_.Send(
        Discard{std::move(event.port), std::move(event.rcache), std::move(event.brought)});
    return;
  }

  if (seat->session != nullptr || seat->held_port != nullptr) {
    Leave(seat, Leaving::kExpelled,
          Status(ErrorId::kProtocolViolation, "a session was attached twice"));
    return;
  }

  seat->held_port = std::move(event.port);
  seat->held_rcache = std::move(event.rcache);
  seat->held_brought = std::move(event.brought);

  Job* job = seat->job;
  if (job->phase == JobPhase::kZeroing && job->zeroing_connection == seat->connection)
    job->zeroed = true;
  life_->Make(job);
  if (job->phase == JobPhase::kOpen) AttachHeld(job);
}

void SessionSlots::AttachHeld(Job* job) {
  for (size_t rank = 0; rank < job->seats.size(); ++rank) {
    Seat* seat = job->seats[rank];
    if (seat != nullptr && seat->held_port != nullptr) Open(seat);
  }
}

Result<std::unique_ptr<Session>> SessionSlots::MakeSession(Seat* seat) {
  if (seat->held_rcache == nullptr || seat->held_rcache->bytes() < seat->rcache_bytes) {
    return Status(ErrorId::kInternal, "the rCache is smaller than granted");
  }
  Session::Parts parts{.id = seat->session_id, .rank = seat->rank};
  if (seat->held_brought.gpu != nullptr) {
    TP_ASSIGN_OR_RETURN(parts.gpu, gpu_shares_->StreamsOf(seat->held_brought.gpu));
    for (const auto& root : context_.tables->roots)
      seat->job->RootShare(root->number(), LaneWay::kToRcache);
  } else {
    TP_ASSIGN_OR_RETURN(parts.stream, context_.parts.device->OpenStream());
  }

  parts.port = std::move(seat->held_port);
  parts.rcache = std::move(seat->held_rcache);
  parts.brought = std::move(seat->held_brought);
  return std::make_unique<Session>(std::move(parts));
}

// All that the rank has to know of its job.
Attached SessionSlots::AnswerTo(const Seat& seat) {
  const JobStates& states = *seat.job->states;
  const StepRecord& step = states.last_step();
  Attached attached{.connection = seat.connection, .session = seat.session_id, .job = seat.job->id};
  attached.job_nonce = seat.job->nonce;
  attached.note = seat.job->note;
  attached.pool_bytes = states.pool_bytes();
  attached.spec = states.shared_spec();

  // Where its run goes on.
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

void SessionSlots::Open(Seat* seat) {
  Job* job = seat->job;
  if (seat->held_brought.gpu != nullptr) job->states->records().NoteGpus(context_.parts.own_server);
  if (const Status taken = gpu_shares_->TakeShare(seat); !taken.ok())
    return Leave(seat, Leaving::kExpelled, taken);

  auto session = MakeSession(seat);
  const ConnectionId connection = seat->connection;
  if (!session.ok() && AwaitAgain(seat))
    return context_.Send(SessionOver{connection, session.status()});
  if (!session.ok()) return Leave(seat, Leaving::kExpelled, session.status());

  seat->session = std::move(session).value();
  job->states->records().SetRank(seat->rank, {seat->nonce, seat->process_start, seat->pid});
  TP_POINT("server.session_attached");
  context_.log->Tell(job->uid, LogLevel::kInfo, "rank attached",
                     {{"job", job->id},
                      {"rank", seat->rank},
                      {"session", seat->session_id},
                      {"version", job->states->sealed_version()},
                      {"nvme_bytes", job->states->nvme_total()}});
  context_.Send(AnswerTo(*seat));
  // It may have been away when the others were told.
  if (job->run() == RunState::kPeerLost) context_.Send(PeerGone{connection, job->FirstMissing()});
}

// Ends the data-plane part of a seat: nothing of it is read or written any more afterwards.
void SessionSlots::Close(Seat* seat, ErrorId reason) {
  if (seat->held_port != nullptr) {
    context_.Send(Discard{std::move(seat->held_port), std::move(seat->held_rcache),
                          std::move(seat->held_brought)});
  }
  if (seat->session == nullptr) return;

  Session& session = *seat->session;
  context_.tables->counters.bytes_h2d += session.bytes_h2d;
  context_.tables->counters.bytes_d2h += session.bytes_d2h;
  DropSession(seat->job->states.get(), &session);
  if (seat->watched) StopWatching(&context_.tables->wake_set, &session);
  session.port().End(reason);
  session.PoisonFlags();
  Session::Remains remains = Session::Dissolve(std::move(seat->session));
  context_.Send(
      Discard{std::move(remains.port), std::move(remains.rcache), std::move(remains.brought)});
}

void SessionSlots::Leave(Seat* seat, Leaving how, const Status& why) {
  if (seat->leaving) return;
  if (seat->session == nullptr || !seat->session->MustDrain()) return CompleteLeave(seat, how, why);
  seat->leaving = Seat::Departure{how, why};
  seat->violation = nullptr;
}

void SessionSlots::CompleteLeave(Seat* seat, Leaving how, const Status& why) {
  Job* job = seat->job;
  const Rank rank = seat->rank;
  const ConnectionId connection = seat->connection;
  TP_POINT("server.seat_leaving");
  Close(seat, how == Leaving::kExpelled ? why.id() : ErrorId::kSessionEnded);
  if (how == Leaving::kExpelled) context_.Send(SessionOver{connection, why});
  std::erase_if(job->waiting_saves,
                [connection](const WaitingSave& save) { return save.connection == connection; });
  Erase(seat);

  // Zeroed by nobody now: the bytes of a former job could show through, so the ranks that wait for
  // it start again.
  const bool orphaned = job->phase == JobPhase::kZeroing && job->zeroing_connection == connection;
  life_->NoteRankLeft(job, rank, how);
  if (how == Leaving::kGoodbye) job->farewells.push_back(connection);
  life_->SendFarewells(job);
  if (!orphaned || job->phase == JobPhase::kRemoving) return;
  life_->BeginRemoval(job);
  ExpelAllOf(job, Status(ErrorId::kPeerLost,
                         "rank " + std::to_string(rank) + " left before the job was ready"));
}

void SessionSlots::Erase(Seat* seat) {
  seat->job->seats[seat->rank] = nullptr;
  std::erase_if(context_.tables->seats, [seat](const auto& other) { return other.get() == seat; });
}

void SessionSlots::ExpelAllOf(Job* job, const Status& why) {
  for (size_t rank = 0; rank < job->seats.size(); ++rank) {
    if (job->seats[rank] != nullptr) Leave(job->seats[rank], Leaving::kExpelled, why);
  }
}

void SessionSlots::ExpelEverybody(const Status& why) {
  const auto& seats = context_.tables->seats;
  const auto stays = [](const auto& seat) { return !seat->leaving; };
  for (;;) {
    const auto last = std::find_if(seats.rbegin(), seats.rend(), stays);
    if (last == seats.rend()) return;
    Leave(last->get(), Leaving::kExpelled, why);
  }
}

bool SessionSlots::AwaitAgain(Seat* seat) {
  Job* job = seat->job;
  const Rank rank = seat->rank;
  const bool came_back =
      seat->session == nullptr && job->IsRecorded() && job->NonceOf(rank) == seat->nonce;
  const bool ending = context_.tables->draining && !context_.tables->handing_over;
  if (!came_back || ending || TP_PLANTED("jobs.unserved_is_lost")) return false;

  Close(seat, ErrorId::kSessionEnded);
  Erase(seat);
  job->awaiting_since_ns = context_.parts.clock->NowNs();
  const RankRecord& record = job->states->record().ranks[rank];
  context_.Send(AwaitRank{job->id, rank, job->NonceOf(rank), record.pid, record.process_start});
  return true;
}

void SessionSlots::EndZeroing(ConnectionId connection) {
  for (const auto& job : context_.tables->jobs)
    job->being_zeroed &= job->zeroing_connection != connection;
}

void SessionSlots::TellViolation(const Seat& seat) {
  const int64_t now = context_.parts.clock->NowNs();
  if (now - violation_window_ns_ >= kViolationLogNs) {
    violation_window_ns_ = now;
    violations_in_window_ = 0;
  }
  if (violations_in_window_++ < kViolationLinesPerWindow) {
    LogWarn("a session broke the protocol and was ended",
            {{"job", seat.job->id}, {"rank", seat.rank}, {"why", seat.violation}});
  }
}

bool SessionSlots::ExpelViolators() {
  bool expelled = false;
  for (size_t i = 0; i < context_.tables->seats.size();) {
    Seat* seat = context_.tables->seats[i].get();
    // Copies of one that is leaving may still find its ring full.
    if (seat->violation == nullptr || seat->leaving) {
      ++i;
      continue;
    }
    TellViolation(*seat);
    ++context_.tables->counters.sessions_ended_badly;
    Leave(seat, Leaving::kExpelled, Status(ErrorId::kProtocolViolation, seat->violation));
    expelled = true;
    i = 0;  // leaving may have ended other seats as well
  }
  return expelled;
}

// The GPU has failed: jobs whose states lie there end, then the sessions whose copies it made.
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

  for (size_t i = 0; i < context_.tables->seats.size(); ++i) {
    Seat* seat = context_.tables->seats[i].get();
    if (seat->session == nullptr || seat->session->lane().gpu() != &gpu || seat->leaving) continue;
    ++context_.tables->counters.sessions_ended_badly;
    Leave(seat, Leaving::kExpelled, why);
    i = SIZE_MAX;  // leaving may have ended other seats as well
  }
}

bool SessionSlots::PollGpus() {
  // Ranks go on with the next server, on whose GPUs nothing has failed.
  if (context_.tables->gpus.empty() || context_.tables->handing_over) return false;
  bool worked = false;
  for (const auto& gpu : context_.tables->gpus) {
    if (!gpu->failed() || gpu->failure_told) continue;
    gpu->failure_told = worked = true;
    EndAllOn(*gpu);
  }

  for (size_t i = 0; i < context_.tables->seats.size(); ++i) {
    Seat* seat = context_.tables->seats[i].get();
    if (!seat->leaving || seat->session->MustDrain()) continue;
    const Seat::Departure departure = *seat->leaving;
    CompleteLeave(seat, departure.how, departure.why);
    worked = true;
    i = SIZE_MAX;
  }
  return worked;
}

bool SessionSlots::EndFailed(Job* job) {
  if (!job->states->spills() && !job->states->uses_gpus()) return false;
  Status why = job->gpus.failure();
  if (why.ok()) why = job->spills.failure();
  if (why.ok()) why = job->fill.failure();
  const bool waits = job->phase == JobPhase::kZeroing && job->states->spills();
  const TierDirectory* poisoned = waits ? context_.parts.tier->PoisonedOf(*job->states) : nullptr;
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

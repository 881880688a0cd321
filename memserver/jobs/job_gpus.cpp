// The part of JobDesk about GPUs: shares of jobs that have states there (decision 026), and what
// ends with a GPU that fails.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/point.h"
#include "memserver/jobs/job_desk.h"
#include "memserver/keeper/keeper_messages.h"
#include "shm/spec/gpu_states.h"

namespace tidepool::memserver {

// The keeper has a slot for each share.
Status JobDesk::AdmitGpuStates(const ReserveJob& event) const {
  const shm::JobSpec& spec = *event.spec;
  if (spec.states_on_gpu == 0) return Status();
  if (!event.brings_rcache) {
    return Status(ErrorId::kJobSpecBad, "job " + spec.name + " wants the states of " +
                                            std::to_string(spec.states_on_gpu) +
                                            " chunks on the GPUs of its ranks, and they bring none")
        .Fix("start it on GPUs (--device cuda), or with its states on the host");
  }
  size_t used = 0;
  for (const Job* job : tables_->AllJobs()) {
    used += static_cast<size_t>(std::count_if(job->gpus.shares().begin(), job->gpus.shares().end(),
                                              [](const GpuShare& s) { return s.slot != 0; }));
  }
  constexpr size_t kSlots = kKeptSlotsMax - kStateSlotsFirst;
  const size_t wanted = std::min<size_t>(spec.world, spec.states_on_gpu);
  if (used + wanted <= kSlots) return Status();
  return Status(ErrorId::kTooManySessions, "job " + spec.name + " has states on GPUs for " +
                                               std::to_string(wanted) + " ranks; " +
                                               std::to_string(kSlots - used) + " of " +
                                               std::to_string(kSlots) + " such places are free");
}

// Also of a job that came from the server before this one, whose other ranks are not back.
Status JobDesk::CheckBrings(const Job& job, Rank rank, bool brings_rcache) {
  if (brings_rcache || !job.states->uses_gpus()) return Status();
  return Status(ErrorId::kJobMismatch,
                "rank " + std::to_string(rank) + " of job " + job.spec().name +
                    " brings no GPU, and states of the job lie on the GPUs of its ranks")
      .Fix("start it with the same --device as before");
}

uint64_t JobDesk::StatesToMake(const Seat& seat) const {
  const auto shares = seat.job->gpus.shares();
  if (shares.empty() || shares[seat.rank].life != GpuShare::Life::kNone) return 0;
  return shm::GpuShareBytes(seat.job->spec(), seat.rank);
}

// The memory that was made for the rank is its share from now on, whatever becomes of the rank.
Status JobDesk::TakeShare(Seat* seat) {
  GpuStateMemory states = std::move(seat->held_brought.states);
  seat->held_brought.states = {};
  if (StatesToMake(*seat) == 0) {  // another incarnation of the rank was before it
    if (states.memory != nullptr) Send(Discard{nullptr, std::move(states.memory)});
    return Status();
  }
  if (states.memory == nullptr)
    return Status(ErrorId::kProtocolViolation,
                  "a rank whose share of the states is to be made brings no GPU");
  Job* job = seat->job;
  GpuShare& share = job->gpus.shares()[seat->rank];
  KeepStates keep{.job = job->id,
                  .rank = seat->rank,
                  .slot = share.slot,
                  .exported = std::move(states.exported)};
  job->states->record().gpu_shares[seat->rank].gpu = states.gpu->facts().uuid;
  TP_RETURN_IF_ERROR(OpenShare(&share, std::move(states)));
  share.life = GpuShare::Life::kHolding;
  TP_POINT("server.gpu_share_made");
  if (parts_.keeps == nullptr) {
    On(StatesKept{.job = job->id, .rank = seat->rank});
  } else {
    parts_.keeps->Push(std::move(keep));
  }
  return Status();
}

Status JobDesk::OpenShare(GpuShare* share, GpuStateMemory states) {
  TP_ASSIGN_OR_RETURN(share->gpu, StreamsOf(states.gpu));
  decltype(share->streams) streams;
  for (auto& stream : streams) {
    TP_ASSIGN_OR_RETURN(stream, states.gpu->TakeStream());
  }
  share->streams = std::move(streams);
  share->memory = std::move(states.memory);
  return Status();
}

void JobDesk::On(StatesKept event) {
  Job* job = tables_->FindJob(event.job);
  if (job == nullptr) return;  // a slot that no job had
  GpuShare& share = job->gpus.shares()[event.rank];
  if (event.let_go) {
    share.life = GpuShare::Life::kDropped;
    return;
  }
  TP_CHECK(share.life == GpuShare::Life::kHolding, "memory is kept once");
  GpuShareRecord& record = job->states->record().gpu_shares[event.rank];
  record.held.store(GpuShareWord(job->nonce, event.rank, share.slot, record.gpu),
                    std::memory_order_release);
  share.life = GpuShare::Life::kReady;
  TP_POINT("server.gpu_share_ready");
  LogInfo("states of a job lie on a GPU", {{"job", job->id},
                                           {"rank", event.rank},
                                           {"gpu", share.gpu->gpu().device().name()},
                                           {"bytes", shm::GpuShareBytes(job->spec(), event.rank)}});
}

void JobDesk::On(StatesImported event) {
  Job* job = tables_->FindJob(event.job);
  GpuShare* share = job == nullptr ? nullptr : &job->gpus.shares()[event.rank];
  if (share == nullptr || share->life != GpuShare::Life::kImporting) {
    if (event.states.memory != nullptr) Send(Discard{nullptr, std::move(event.states.memory)});
    return;
  }
  Status why = event.result;
  if (why.ok()) why = OpenShare(share, std::move(event.states));
  if (why.ok()) {
    share->life = GpuShare::Life::kReady;
    TP_POINT("server.gpu_share_imported");
    return;
  }
  job->gpus.Fail(Status(ErrorId::kStatesLost,
                        "the states of job " + job->spec().name + " on the GPU of rank " +
                            std::to_string(event.rank) + " cannot be had again")
                     .Why(why.what() + (why.why().empty() ? "" : ": " + why.why())));
}

// True when nobody but this table knows of the memory any more: neither a GPU, nor the keeper.
bool JobDesk::LetGoOfShares(Job* job) {
  using Life = GpuShare::Life;
  bool gone = true;
  for (Rank rank = 0; rank < job->gpus.shares().size(); ++rank) {
    GpuShare& share = job->gpus.shares()[rank];
    if (share.life == Life::kReady || share.life == Life::kImporting) {
      for (auto& stream : share.streams) stream.reset();
      if (share.memory != nullptr) Send(Discard{nullptr, std::move(share.memory)});
      share.life = parts_.keeps == nullptr ? Life::kDropped : Life::kDropping;
      if (parts_.keeps != nullptr)
        parts_.keeps->Push(KeepStates{.job = job->id, .rank = rank, .slot = share.slot});
    }
    gone &= share.life == Life::kNone || share.life == Life::kDropped;
  }
  return gone;
}

bool JobDesk::TendGpus() {
  // Ranks go on with the next server, on whose GPUs nothing has failed.
  if (tables_->gpus.empty() || tables_->handing_over) return false;
  bool worked = false;
  for (const auto& gpu : tables_->gpus) {
    if (!gpu->failed() || gpu->failure_told) continue;
    gpu->failure_told = worked = true;
    const Status why = gpu->status();
    LogError("a GPU failed: the sessions on it end, and jobs whose states lie there",
             {{"gpu", gpu->gpu().device().name()}, {"why", why.Line()}});
    for (const auto& job : tables_->jobs) {
      const auto on_it = [&gpu](const GpuShare& share) { return share.gpu == gpu.get(); };
      if (std::none_of(job->gpus.shares().begin(), job->gpus.shares().end(), on_it)) continue;
      job->gpus.Fail(Status(ErrorId::kStatesLost, "the states of job " + job->spec().name + " on " +
                                                      gpu->gpu().device().name() +
                                                      " are lost: the GPU failed")
                         .Why(why.what()));
      EndFailed(job.get());
    }
    for (size_t i = 0; i < tables_->seats.size(); ++i) {
      Seat* seat = tables_->seats[i].get();
      if (seat->session == nullptr || seat->session->lane().gpu() != gpu.get() || seat->leaving)
        continue;
      ++tables_->counters.sessions_ended_badly;
      LeaveSeat(seat, Leaving::kExpelled, why);
      i = SIZE_MAX;  // leaving may have ended other seats as well
    }
  }
  for (size_t i = 0; i < tables_->seats.size(); ++i) {
    Seat* seat = tables_->seats[i].get();
    if (!seat->leaving || seat->session->MustDrain()) continue;
    const Seat::Departure departure = *seat->leaving;
    CompleteLeave(seat, departure.how, departure.why);
    worked = true;
    i = SIZE_MAX;
  }
  return worked;
}

}  // namespace tidepool::memserver

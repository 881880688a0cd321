#include "memserver/jobs/gpu_share_desk.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/point.h"
#include "memserver/keeper/keeper_messages.h"
#include "shm/spec/gpu_states.h"

namespace tidepool::memserver {

// The keeper has a slot for each share.
Status GpuShareDesk::Admit(const ReserveJob& event) const {
  const shm::JobSpec& spec = *event.spec;
  if (spec.states_on_gpu == 0) return Status();
  if (!event.client_owned_rcache) {
    return Status(ErrorId::kJobSpecBad, "job " + spec.name + " wants the states of " +
                                            std::to_string(spec.states_on_gpu) +
                                            " chunks on the GPUs of its ranks, and they bring none")
        .Fix("start it on GPUs (--device cuda), or with its states on the host");
  }

  size_t used = 0;
  for (const Job* job : context_.tables->AllJobs()) {
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

Status GpuShareDesk::CheckBrings(const Job& job, Rank rank, bool client_owned_rcache) {
  if (client_owned_rcache || !job.states->uses_gpus()) return Status();
  return Status(ErrorId::kJobMismatch,
                "rank " + std::to_string(rank) + " of job " + job.spec().name +
                    " brings no GPU, and states of the job lie on the GPUs of its ranks")
      .Fix("start it with the same --device as before");
}

uint64_t GpuShareDesk::StatesToMake(const SessionSlot& slot) {
  const auto shares = slot.job->gpus.shares();
  if (shares.empty() || shares[slot.rank].life != GpuShare::Life::kNone) return 0;
  return shm::GpuShareBytes(slot.job->spec(), slot.rank);
}

Status GpuShareDesk::TakeShare(SessionSlot* slot) {
  GpuStateMemory states = std::move(slot->held_brought.states);
  slot->held_brought.states = {};
  if (StatesToMake(*slot) == 0) {  // another incarnation of the rank came first
    if (states.memory != nullptr) context_.Send(Discard{nullptr, std::move(states.memory)});
    return Status();
  }
  if (states.memory == nullptr)
    return Status(ErrorId::kProtocolViolation,
                  "a rank whose share of the states is to be made brings no GPU");

  Job* job = slot->job;
  GpuShare& share = job->gpus.shares()[slot->rank];
  KeepStates keep{.job = job->id,
                  .rank = slot->rank,
                  .slot = share.slot,
                  .exported = std::move(states.exported)};
  job->states->record().gpu_shares[slot->rank].gpu = states.gpu->facts().uuid;

  TP_RETURN_IF_ERROR(Open(&share, std::move(states)));
  share.life = GpuShare::Life::kHolding;
  TP_POINT("server.gpu_share_made");
  if (context_.neighbours.keeps == nullptr) {
    NoteKept(StatesKept{.job = job->id, .rank = slot->rank});
  } else {
    context_.neighbours.keeps->Push(std::move(keep));
  }
  return Status();
}

Status GpuShareDesk::Open(GpuShare* share, GpuStateMemory states) {
  TP_ASSIGN_OR_RETURN(share->gpu, StreamsOf(states.gpu));
  decltype(share->streams) streams;
  for (auto& stream : streams) {
    TP_ASSIGN_OR_RETURN(stream, states.gpu->TakeStream());
  }
  share->streams = std::move(streams);
  share->memory = std::move(states.memory);
  return Status();
}

void GpuShareDesk::NoteKept(const StatesKept& event) {
  Job* job = context_.tables->FindJob(event.job);
  if (job == nullptr) return;  // a slot that belonged to no job
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

void GpuShareDesk::NoteImported(StatesImported event) {
  Job* job = context_.tables->FindJob(event.job);
  GpuShare* share = job == nullptr ? nullptr : &job->gpus.shares()[event.rank];
  if (share == nullptr || share->life != GpuShare::Life::kImporting) {
    if (event.states.memory != nullptr)
      context_.Send(Discard{nullptr, std::move(event.states.memory)});
    return;
  }

  Status why = event.result;
  if (why.ok()) why = Open(share, std::move(event.states));
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

bool GpuShareDesk::LetGo(Job* job) {
  using Life = GpuShare::Life;
  bool gone = true;
  for (Rank rank = 0; rank < job->gpus.shares().size(); ++rank) {
    GpuShare& share = job->gpus.shares()[rank];
    if (share.life == Life::kReady || share.life == Life::kImporting) {
      for (auto& stream : share.streams) stream.reset();
      if (share.memory != nullptr) context_.Send(Discard{nullptr, std::move(share.memory)});

      EventQueue<KeepStates>* const keeps = context_.neighbours.keeps;
      share.life = keeps == nullptr ? Life::kDropped : Life::kDropping;
      if (keeps != nullptr)
        keeps->Push(KeepStates{.job = job->id, .rank = rank, .slot = share.slot});
    }

    gone &= share.life == Life::kNone || share.life == Life::kDropped;
  }
  return gone;
}

Result<GpuStreams*> GpuShareDesk::StreamsOf(Gpu* gpu) {
  for (const auto& open : context_.tables->gpus) {
    if (&open->gpu() != gpu) continue;
    if (open->failed()) return open->status();
    return open.get();
  }

  auto& roots = context_.tables->roots;
  const auto same = [gpu](const auto& root) { return root->name() == gpu->root_complex(); };
  const auto number =
      static_cast<size_t>(std::find_if(roots.begin(), roots.end(), same) - roots.begin());
  if (number == roots.size()) {
    roots.push_back(std::make_unique<RootComplex>(gpu->root_complex(), number,
                                                  context_.options.gpu_copy_bytes));
    // Makes the jobs' shares of this GPU now, because turns do not allocate.
    for (const auto& job : context_.tables->jobs) job->RootShare(number, LaneWay::kToRcache);
  }

  TP_ASSIGN_OR_RETURN(std::unique_ptr<GpuStreams> streams,
                      GpuStreams::Open(gpu, roots[number].get()));
  context_.tables->gpus.push_back(std::move(streams));
  return context_.tables->gpus.back().get();
}

}  // namespace tidepool::memserver

#include "memserver/jobs/admission/job_admission.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/buggify.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/admission/build_ledger.h"
#include "shm/spec/frozen.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/spec_difference.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {
namespace {

// Merges adjacent runs into one range.
std::vector<std::span<std::byte>> Ranges(std::span<const Extent> runs) {
  std::vector<std::span<std::byte>> ranges;
  for (const Extent& run : runs) {
    if (!ranges.empty() && ranges.back().data() + ranges.back().size() == run.data) {
      ranges.back() = {ranges.back().data(), ranges.back().size() + run.bytes};
    } else {
      ranges.push_back({run.data, run.bytes});
    }
  }
  return ranges;
}

std::string RankText(Rank rank) {
  return "rank " + std::to_string(rank);
}

}  // namespace

Demand JobAdmission::DemandOf(const ReserveJob& event) const {
  const shm::JobSpec& spec = *event.spec;
  Demand demand;
  demand.job = spec.name;
  demand.account = context_.tables->quotas.AccountOf(spec.name, event.uid);
  demand.pool_bytes =
      context_.tables->FindJob(spec.name) == nullptr ? shm::HostBytesOf(spec, shm::kNoSpill) : 0;
  if (demand.pool_bytes > 0)
    demand.frozen_bytes = context_.tables->frozen->MissingBytes(spec, event.uid);

  demand.rcache_bytes = event.client_owned_rcache ? 0 : spec.world * spec.rcache_bytes;
  demand.ranks = spec.world;
  demand.uid = event.uid;

  // Root and the user that memserver runs as are not limited.
  demand.is_limited = event.uid != 0 && event.uid != context_.options.owner;
  if (!demand.is_limited) return demand;
  demand.user_ranks_max = context_.options.limits.user_sessions_max;
  demand.user_jobs_max = context_.options.limits.UserJobs(context_.settings.live().jobs_max);
  return demand;
}

Result<Placement> JobAdmission::Place(const shm::JobSpec& spec, const Ledger& ledger,
                                      std::vector<uint64_t> nvme_free, Demand* demand) const {
  Space space{RoomFor(ledger, demand->account).bytes, std::move(nvme_free)};
  // An account with an NVMe limit of 0 keeps all of its jobs on the host.
  if (ledger.QuotaOf(demand->account).nvme_limit == 0) space.nvme_free.clear();
  demand->nvme_bytes =
      shm::NvmeBytesOf(spec, FirstSpilledOf(spec, context_.settings.live().states_on, space));
  TP_RETURN_IF_ERROR(AdmitSpill(ledger, *demand));
  TP_ASSIGN_OR_RETURN(Placement placement,
                      PlaceStates(spec, context_.settings.live().states_on, space));
  demand->pool_bytes = placement.host_bytes;
  return placement;
}

Ledger JobAdmission::CurrentLedger() const {
  return BuildLedger(context_.neighbours, context_.options, *context_.tables, context_.settings);
}

bool JobAdmission::CouldEverFit(const ReserveJob& event) const {
  Ledger empty = CurrentLedger();
  empty.holdings.clear();
  Demand demand = DemandOf(event);

  if (demand.pool_bytes > 0) {
    demand.frozen_bytes = shm::FrozenPoolBytes(*event.spec);
    Ledger with_frozen = empty;
    const auto capacities = context_.neighbours.tier == nullptr
                                ? std::vector<uint64_t>()
                                : context_.neighbours.tier->Capacities();
    if (!AdmitFrozen(&with_frozen, demand).ok() ||
        !Place(*event.spec, with_frozen, capacities, &demand).ok())
      return false;
  }

  return memserver::CouldEverFit(std::move(empty), demand).ok();
}

Status JobAdmission::CheckJoin(const Job& job, const ReserveJob& event) {
  const shm::JobSpec& spec = job.spec();
  if (job.uid != event.uid)
    return Status(ErrorId::kNotOwner,
                  "job " + spec.name + " belongs to user " + std::to_string(job.uid));
  if (event.spec->world != spec.world) {
    return Status(ErrorId::kRankCountMismatch,
                  RankText(event.rank) + " says that job " + spec.name + " has " +
                      std::to_string(event.spec->world) + " ranks; it was made for " +
                      std::to_string(spec.world));
  }

  if (job.states->is_moving_out() && !TP_PLANTED("jobs.joined_while_moving")) {
    return Status(ErrorId::kNotReady,
                  "the states of job " + spec.name + " are just leaving the host for NVMe");
  }

  if (job.fingerprint != event.fingerprint) {
    return Status(ErrorId::kJobMismatch, RankText(event.rank) + " describes job " + spec.name +
                                             " differently from the ranks before it: " +
                                             shm::DifferenceOf(spec, *event.spec));
  }
  if (job.HasSlots() && job.client_owned_rcache != event.client_owned_rcache) {
    return Status(ErrorId::kJobMismatch,
                  RankText(event.rank) + " of job " + spec.name + " has its rCache " +
                      (event.client_owned_rcache ? "on a GPU, ranks before it on the host"
                                                 : "on the host, ranks before it on a GPU"))
        .Fix("start all ranks with the same --device");
  }

  TP_RETURN_IF_ERROR(GpuShareDesk::CheckBrings(job, event.rank, event.client_owned_rcache));
  if (job.slots[event.rank] != nullptr)
    return Status(ErrorId::kRankTaken,
                  RankText(event.rank) + " of job " + spec.name + " is attached");
  if (job.IsAwaited(event.rank) && job.NonceOf(event.rank) != event.nonce) {
    return Status(ErrorId::kRankTaken, RankText(event.rank) + " of job " + spec.name +
                                           " is expected back: memserver was restarted")
        .Fix("wait until it has come back or ended");
  }

  if (job.run_broken() && job.HasRanks()) {
    return Status(ErrorId::kRankTaken, "a rank of job " + spec.name +
                                           " has left, and others of that run are still attached")
        .Fix("wait until they have ended, then start all ranks again");
  }
  return Status();
}

// The token cannot be derived from those of other jobs. Without it there is no job.
Result<uint64_t> JobAdmission::TokenOf(JobId job) const {
  if (!context_.options.random_tokens) return context_.neighbours.index->NonceOf(job);
  uint64_t token = 0;
  if (getrandom(&token, sizeof token, 0) == sizeof token) return token | 1;
  return Status(ErrorId::kNotReady,
                "the system gives no random number for the token of a new job (getrandom)")
      .Why(std::strerror(errno));
}

Result<Job*> JobAdmission::CreateJob(const ReserveJob& event) {
  const shm::JobSpec& spec = *event.spec;
  TP_RETURN_IF_ERROR(gpu_shares_->Admit(event));
  Demand demand = DemandOf(event);
  Ledger ledger = CurrentLedger();
  TP_RETURN_IF_ERROR(AdmitFrozen(&ledger, demand));
  const auto nvme_free = context_.neighbours.tier == nullptr
                             ? std::vector<uint64_t>()
                             : context_.neighbours.tier->LargestFree();
  TP_ASSIGN_OR_RETURN(const Placement placement, Place(spec, ledger, nvme_free, &demand));
  TP_RETURN_IF_ERROR(AdmitJob(ledger, demand));

  TP_ASSIGN_OR_RETURN(const uint64_t nonce, TokenOf(context_.tables->last_job + 1));
  TP_ASSIGN_OR_RETURN(FrozenHold frozen, context_.tables->frozen->Begin(spec, event.uid));
  const uint32_t rows = TP_BUGGIFY("desk.list_slowly") ? 1 : FrozenTable::kRowsPerTurn;
  TP_RETURN_IF_ERROR(context_.tables->frozen->TakeMore(
      spec, TP_PLANTED("jobs.frozen_listed_at_once") ? UINT32_MAX : rows, &frozen));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<JobStates> states,
                      JobStates::Reserve(event.spec, context_.neighbours.pool, placement));

  states->HoldFrozen(std::move(frozen));
  if (states->spills())
    TP_CHECK(context_.neighbours.tier->Reserve(nonce, states.get()),
             "the placement was made for the ranges that are free");

  auto job = std::make_unique<Job>(++context_.tables->last_job, std::move(states),
                                   context_.neighbours.pool, context_.neighbours.tier);
  job->nonce = nonce;
  job->fingerprint = event.fingerprint;
  job->uid = event.uid;
  job->note = event.note;
  job->zeroing_connection = event.connection;
  const std::string account = context_.tables->quotas.AccountOf(spec.name, event.uid);
  job->SetQuota(account, context_.tables->quotas.QuotaFor(spec.name, event.uid));

  context_.tables->jobs.push_back(std::move(job));
  TP_POINT("server.job_reserved");
  Job* created = context_.tables->jobs.back().get();
  GiveShareSlots(context_.tables->AllJobs());
  TellAdmitted(*created, demand.frozen_bytes);
  return created;
}

void JobAdmission::TellAdmitted(const Job& job, uint64_t frozen_bytes) const {
  const shm::WeightSpill& weights = job.states->placement().weights();
  const int64_t first_on_nvme = weights.any() ? static_cast<int64_t>(weights.first) : -1;

  context_.log->Tell(job.uid, LogLevel::kInfo, "job admitted",
                     {{"job", job.id},
                      {"name", job.spec().name},
                      {"ranks", job.spec().world},
                      {"pool_bytes", job.states->pool_bytes()},
                      {"frozen_bytes", frozen_bytes},
                      {"weights_on_nvme_from_chunk", first_on_nvme},
                      {"nvme_bytes", job.states->nvme_total()},
                      {"gpu_bytes", shm::GpuStateBytes(job.spec())}});
}

// Checks what can be decided before the job is looked at.
Status JobAdmission::CheckAsked(const ReserveJob& event) const {
  const shm::JobSpec& spec = *event.spec;
  if (context_.tables->draining) return context_.tables->WhyStopping();
  if (context_.tables->FindSlot(event.connection) != nullptr)
    return Status(ErrorId::kProtocolViolation, "a connection asked for a second slot");
  if (event.rank >= spec.world) {
    return Status(ErrorId::kRankCountMismatch,
                  RankText(event.rank) + " of a job with " + std::to_string(spec.world) + " ranks");
  }
  return Status();
}

Result<SessionSlot*> JobAdmission::TakeSlot(const ReserveJob& event) {
  TP_RETURN_IF_ERROR(CheckAsked(event));
  const shm::JobSpec& spec = *event.spec;
  // First checks whether its rank is free: a limit as small as the job allows is full until the
  // former rank has gone.
  Job* job = context_.tables->FindJob(spec.name);
  if (job == nullptr) {
    TP_RETURN_IF_ERROR(context_.tables->WhySetAside(spec.name, 0));
    TP_RETURN_IF_ERROR(context_.tables->withheld.why);
  }
  if (job == nullptr && context_.settings.closed()) {
    return Status(ErrorId::kTooManySessions, "memserver is being drained: it takes no new jobs")
        .Fix("wait for it (--wait), or ask an operator");
  }
  if (job != nullptr) TP_RETURN_IF_ERROR(CheckJoin(*job, event));

  if (job == nullptr || !job->HasRanks())
    TP_RETURN_IF_ERROR(AdmitRun(CurrentLedger(), DemandOf(event)));
  if (job == nullptr) {
    TP_ASSIGN_OR_RETURN(job, CreateJob(event));
  }
  // The same incarnation asks again: the former server ended before its answer arrived. It has not
  // sent anything yet.
  if (job->IsAwaited(event.rank) && job->NonceOf(event.rank) == event.nonce)
    job->states->records().ClearRank(event.rank);

  if (TP_PLANTED("jobs.note_of_the_last_rank")) job->note = event.note;
  if (!job->HasRanks()) job->SetRun(RunState::kWhole);
  if (job->IsRecorded())
    job->states->record().ranks_left_well.fetch_and(~(uint64_t{1} << event.rank),
                                                    std::memory_order_release);

  SessionSlot slot;
  slot.connection = event.connection;
  slot.rank = event.rank;
  slot.pid = event.pid;
  slot.nonce = event.nonce;
  slot.process_start = event.process_start;
  slot.client_owned_rcache = event.client_owned_rcache;
  return AddSlot(job, std::move(slot));
}

SessionSlot* JobAdmission::AddSlot(Job* job, SessionSlot made) {
  auto slot = std::make_unique<SessionSlot>(std::move(made));
  slot->session_id = ++last_session_;
  slot->job = job;
  job->client_owned_rcache = slot->client_owned_rcache;
  slot->rcache_bytes = job->spec().rcache_bytes;
  job->slots[slot->rank] = slot.get();
  context_.tables->slots.push_back(std::move(slot));
  return context_.tables->slots.back().get();
}

Result<SessionSlot*> JobAdmission::TakeSlotAgain(const ResumeSession& event) {
  if (context_.tables->draining) return context_.tables->WhyStopping();
  if (context_.tables->FindSlot(event.connection) != nullptr)
    return Status(ErrorId::kProtocolViolation, "a connection asked for a second slot");

  Job* job = context_.tables->FindJobByNonce(event.job_nonce);
  if (job == nullptr) TP_RETURN_IF_ERROR(context_.tables->WhySetAside("", event.job_nonce));
  if (job == nullptr || event.rank >= job->spec().world) {
    return Status(ErrorId::kStatesLost,
                  "memserver holds no such job: its memory was lost, or its lease has ended");
  }
  if (job->uid != event.uid)
    return Status(ErrorId::kNotOwner,
                  "job " + job->spec().name + " belongs to user " + std::to_string(job->uid));

  if (!job->IsAwaited(event.rank) ||
      (job->NonceOf(event.rank) != event.nonce && !TP_PLANTED("jobs.nonce_unchecked"))) {
    return Status(ErrorId::kPeerLost, RankText(event.rank) + " of job " + job->spec().name +
                                          " was counted as lost before it came back");
  }
  TP_RETURN_IF_ERROR(GpuShareDesk::CheckBrings(*job, event.rank, event.client_owned_rcache));

  SessionSlot slot;
  slot.connection = event.connection;
  slot.rank = event.rank;
  slot.pid = event.pid;
  slot.nonce = event.nonce;
  slot.process_start = job->states->record().ranks[event.rank].process_start;
  slot.client_owned_rcache = event.client_owned_rcache;
  return AddSlot(job, std::move(slot));
}

void JobAdmission::Grant(const SessionSlot& slot) const {
  ReserveGranted granted{slot.connection, slot.job->id, slot.session_id, slot.rcache_bytes, {}, 0};
  if (slot.job->phase == JobPhase::kZeroing && slot.job->zeroing_connection == slot.connection) {
    granted.to_zero = Ranges(slot.job->states->placement().runs());
    slot.job->being_zeroed = true;
  }
  granted.gpu_state_bytes = GpuShareDesk::StatesToMake(slot);
  context_.Send(std::move(granted));
}

void JobAdmission::Refuse(const ReserveJob& event, const Status& why) const {
  context_.log->Tell(event.uid, LogLevel::kInfo, "rank refused",
                     {{"name", event.spec->name}, {"rank", event.rank}, {"why", why.Line()}});
  context_.Send(Refused{event.connection, why});
}

void JobAdmission::GrantAgain(const SessionSlot& slot) const {
  context_.Send(ReserveGranted{slot.connection,
                               slot.job->id,
                               slot.session_id,
                               slot.rcache_bytes,
                               {},
                               GpuShareDesk::StatesToMake(slot)});
  TP_POINT("server.rank_resuming");
}

void JobAdmission::RefuseAgain(const ResumeSession& event, const Status& why) const {
  context_.log->Tell(event.uid, LogLevel::kInfo, "rank refused",
                     {{"rank", event.rank}, {"why", why.Line()}});
  context_.Send(Refused{event.connection, why});
}

}  // namespace tidepool::memserver

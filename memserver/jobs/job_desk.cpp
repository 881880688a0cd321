#include "memserver/jobs/job_desk.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/snapshot_builder.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/spec_difference.h"

namespace tidepool::memserver {
namespace {

// Extents that lie one behind the other become one range.
std::vector<std::span<std::byte>> Ranges(std::span<const Extent> extents) {
  std::vector<std::span<std::byte>> ranges;
  for (const Extent& extent : extents) {
    if (extent.bytes == 0) continue;
    if (!ranges.empty() && ranges.back().data() + ranges.back().size() == extent.data) {
      ranges.back() = {ranges.back().data(), ranges.back().size() + extent.bytes};
    } else {
      ranges.push_back({extent.data, extent.bytes});
    }
  }
  return ranges;
}

std::string RankText(Rank rank) {
  return "rank " + std::to_string(rank);
}

}  // namespace

void JobDesk::Handle(ControlEvent event) {
  std::visit([this](auto& e) { On(std::move(e)); }, event);
}

Status JobDesk::CheckJoin(const Job& job, const ReserveJob& event) const {
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
  if (job.fingerprint != event.fingerprint) {
    return Status(ErrorId::kJobMismatch, RankText(event.rank) + " describes job " + spec.name +
                                             " differently from the ranks before it: " +
                                             shm::DifferenceOf(spec, *event.spec));
  }
  if (job.HasSeats() && job.brings_rcache != event.brings_rcache) {
    return Status(ErrorId::kJobMismatch,
                  RankText(event.rank) + " of job " + spec.name + " has its rCache " +
                      (event.brings_rcache ? "on a GPU, ranks before it on the host"
                                           : "on the host, ranks before it on a GPU"))
        .Fix("start all ranks with the same --device");
  }
  TP_RETURN_IF_ERROR(CheckBrings(job, event.rank, event.brings_rcache));
  if (job.seats[event.rank] != nullptr)
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

Result<Placement> JobDesk::Place(const shm::JobSpec& spec, const Ledger& ledger,
                                 std::vector<uint64_t> nvme_free, Demand* demand) const {
  Space space{RoomFor(ledger, demand->account).bytes, std::move(nvme_free)};
  // An account that may have nothing there has all of its jobs on the host.
  if (ledger.QuotaOf(demand->account).nvme_limit == 0) space.nvme_free.clear();
  demand->nvme_bytes = shm::NvmeBytesOf(spec, FirstSpilledOf(spec, tables_->live.states_on, space));
  TP_RETURN_IF_ERROR(AdmitSpill(ledger, *demand));
  TP_ASSIGN_OR_RETURN(Placement placement, PlaceStates(spec, tables_->live.states_on, space));
  demand->pool_bytes = placement.host_bytes;
  return placement;
}

// Nobody can tell it from those of other jobs; without such a one there is no job.
Result<uint64_t> JobDesk::TokenOf(JobId job) const {
  if (!options_.random_tokens) return parts_.index->NonceOf(job);
  uint64_t token = 0;
  if (getrandom(&token, sizeof token, 0) == sizeof token) return token | 1;
  return Status(ErrorId::kNotReady,
                "the system gives no random number for the token of a new job (getrandom)")
      .Why(std::strerror(errno));
}

Result<Job*> JobDesk::CreateJob(const ReserveJob& event) {
  const shm::JobSpec& spec = *event.spec;
  TP_RETURN_IF_ERROR(AdmitGpuStates(event));
  Demand demand = DemandOf(event);
  Ledger ledger = BuildLedger(parts_, options_, *tables_);
  TP_RETURN_IF_ERROR(AdmitFrozen(&ledger, demand));
  const auto nvme_free =
      parts_.tier == nullptr ? std::vector<uint64_t>() : parts_.tier->LargestFree();
  TP_ASSIGN_OR_RETURN(const Placement placement, Place(spec, ledger, nvme_free, &demand));
  TP_RETURN_IF_ERROR(AdmitJob(ledger, demand));
  TP_ASSIGN_OR_RETURN(const uint64_t nonce, TokenOf(tables_->last_job + 1));
  TP_ASSIGN_OR_RETURN(FrozenHold frozen, tables_->frozen->Take(spec, event.uid));
  TP_RETURN_IF_ERROR(WhyNotToShare(frozen));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<JobStates> states,
                      JobStates::Create(event.spec, parts_.pool, placement));
  states->HoldFrozen(std::move(frozen));
  if (states->spills())
    TP_CHECK(parts_.tier->Reserve(nonce, states.get()),
             "the placement was made for the ranges that are free");
  auto job =
      std::make_unique<Job>(++tables_->last_job, std::move(states), parts_.pool, parts_.tier);
  job->nonce = nonce;
  job->fingerprint = event.fingerprint;
  job->uid = event.uid;
  job->note = event.note;
  job->zeroing_connection = event.connection;
  const std::string account = tables_->quotas.AccountOf(spec.name, event.uid);
  job->SetQuota(account, tables_->quotas.QuotaFor(spec.name, event.uid));
  tables_->jobs.push_back(std::move(job));
  TP_POINT("server.job_reserved");
  Job* created = tables_->jobs.back().get();
  GiveShareSlots(tables_->AllJobs());
  Tell(event.uid, LogLevel::kInfo, "job admitted",
       {{"job", created->id},
        {"name", spec.name},
        {"ranks", spec.world},
        {"pool_bytes", created->states->pool_bytes()},
        {"frozen_bytes", demand.frozen_bytes},
        {"weights_on_nvme_from_chunk", created->states->window().any()
                                           ? static_cast<int64_t>(created->states->window().first())
                                           : -1},
        {"nvme_bytes", created->states->nvme_total()},
        {"gpu_bytes", shm::GpuStateBytes(spec)}});
  return created;
}

Result<Seat*> JobDesk::TakeSeat(const ReserveJob& event) {
  const shm::JobSpec& spec = *event.spec;
  if (tables_->draining) return WhyStopping();
  if (tables_->FindSeat(event.connection) != nullptr)
    return Status(ErrorId::kProtocolViolation, "a connection asked for a second seat");
  if (event.rank >= spec.world) {
    return Status(ErrorId::kRankCountMismatch,
                  RankText(event.rank) + " of a job with " + std::to_string(spec.world) + " ranks");
  }
  // First whether its place is free: a limit that is as small as the job allows is full until the
  // rank before it has gone.
  Job* job = tables_->FindJob(spec.name);
  if (job == nullptr) TP_RETURN_IF_ERROR(tables_->WhySetAside(spec.name, 0));
  if (job == nullptr && tables_->closed) {
    return Status(ErrorId::kTooManySessions, "memserver is being drained: it takes no new jobs")
        .Fix("wait for it (--wait), or ask an operator");
  }
  if (job != nullptr) TP_RETURN_IF_ERROR(CheckJoin(*job, event));
  if (job == nullptr || !job->HasRanks())
    TP_RETURN_IF_ERROR(AdmitRun(BuildLedger(parts_, options_, *tables_), DemandOf(event)));
  if (job == nullptr) {
    TP_ASSIGN_OR_RETURN(job, CreateJob(event));
  }
  // The same incarnation asks again: the server before this one ended before its answer arrived. It
  // has sent nothing yet.
  if (job->IsAwaited(event.rank) && job->NonceOf(event.rank) == event.nonce)
    job->states->ClearRank(event.rank);
  if (TP_PLANTED("jobs.note_of_the_last_rank")) job->note = event.note;
  if (!job->HasRanks()) job->SetRun(RunState::kWhole);
  if (job->IsRecorded())
    job->states->record().ranks_left_well.fetch_and(~(uint64_t{1} << event.rank),
                                                    std::memory_order_release);
  Seat seat;
  seat.connection = event.connection;
  seat.rank = event.rank;
  seat.pid = event.pid;
  seat.nonce = event.nonce;
  seat.process_start = event.process_start;
  seat.brings_rcache = event.brings_rcache;
  return AddSeat(job, std::move(seat));
}

Seat* JobDesk::AddSeat(Job* job, Seat made) {
  auto seat = std::make_unique<Seat>(std::move(made));
  seat->session_id = ++tables_->last_session;
  seat->job = job;
  job->brings_rcache = seat->brings_rcache;
  seat->rcache_bytes = job->spec().rcache_bytes;
  job->seats[seat->rank] = seat.get();
  tables_->seats.push_back(std::move(seat));
  return tables_->seats.back().get();
}

// A process that gave its seat up while no server was there, and comes anew: as it lives, nobody
// else will say that the old place is lost.
void JobDesk::LoseFormerSelf(const ReserveJob& event) {
  Job* job = tables_->FindJob(event.spec->name);
  if (job == nullptr || job->uid != event.uid || event.rank >= job->seats.size() ||
      !job->IsAwaited(event.rank))
    return;
  const RankRecord& awaited = job->states->record().ranks[event.rank];
  const bool is_itself =
      event.pid > 0 && awaited.pid == event.pid && awaited.process_start == event.process_start;
  if (is_itself && job->NonceOf(event.rank) != event.nonce)
    LoseAwaited(job, event.rank, "its process begins anew");
}

void JobDesk::On(ReserveJob event) {
  LoseFormerSelf(event);
  const Status turn = CheckTurn(event);
  // Whoever passes others does so where it fits now, and not at the head of the queue.
  const std::vector<WaitingRank*> passed =
      turn.ok() ? PassedBy(event, tables_->waiting.size()) : std::vector<WaitingRank*>();
  Result<Seat*> taken = turn.ok() ? TakeSeat(event) : Result<Seat*>(turn);
  if (taken.ok()) {
    for (WaitingRank* other : passed) other->passed_by.push_back(event.uid);
    return Grant(**taken);
  }
  const bool its_turn = turn.ok() && passed.empty();
  Status why = taken.status();
  if (!StaysParked(event, its_turn, &why)) return Refuse(event, why);
  if (const Status place = CheckQueue(event); !place.ok())
    return Refuse(event, Status(place).Why(why.what()));
  Enqueue(std::move(event), why, its_turn);
}

void JobDesk::Refuse(const ReserveJob& event, const Status& why) {
  Tell(event.uid, LogLevel::kInfo, "rank refused",
       {{"name", event.spec->name}, {"rank", event.rank}, {"why", why.Line()}});
  Send(Refused{event.connection, why});
}

void JobDesk::Grant(const Seat& seat) {
  ReserveGranted granted{seat.connection, seat.job->id, seat.session_id, seat.rcache_bytes, {}, 0};
  if (seat.job->phase == JobPhase::kZeroing && seat.job->zeroing_connection == seat.connection) {
    granted.to_zero = Ranges(seat.job->states->extents());
    seat.job->being_zeroed = true;
  }
  granted.gpu_state_bytes = StatesToMake(seat);
  Send(std::move(granted));
}

// The rank's seat at the server before this one: it comes back with the rCache that it had.
Result<Seat*> JobDesk::TakeSeatAgain(const ResumeSession& event) {
  if (tables_->draining) return WhyStopping();
  if (tables_->FindSeat(event.connection) != nullptr)
    return Status(ErrorId::kProtocolViolation, "a connection asked for a second seat");
  Job* job = tables_->FindJobByNonce(event.job_nonce);
  if (job == nullptr) TP_RETURN_IF_ERROR(tables_->WhySetAside("", event.job_nonce));
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
  TP_RETURN_IF_ERROR(CheckBrings(*job, event.rank, event.brings_rcache));
  Seat seat;
  seat.connection = event.connection;
  seat.rank = event.rank;
  seat.pid = event.pid;
  seat.nonce = event.nonce;
  seat.process_start = job->states->record().ranks[event.rank].process_start;
  seat.brings_rcache = event.brings_rcache;
  return AddSeat(job, std::move(seat));
}

void JobDesk::On(ResumeSession event) {
  Result<Seat*> taken = TakeSeatAgain(event);
  if (!taken.ok()) {
    Tell(event.uid, LogLevel::kInfo, "rank refused",
         {{"rank", event.rank}, {"why", taken.status().Line()}});
    Send(Refused{event.connection, taken.status()});
    return;
  }
  Send(ReserveGranted{event.connection,
                      (*taken)->job->id,
                      (*taken)->session_id,
                      (*taken)->rcache_bytes,
                      {},
                      StatesToMake(**taken)});
  TP_POINT("server.rank_resuming");
}

void JobDesk::On(AttachSession event) {
  EndZeroing(event.connection);
  Seat* seat = tables_->FindSeat(event.connection);
  if (seat == nullptr) {  // it was ended while the control side prepared its memory
    Send(Discard{std::move(event.port), std::move(event.rcache), std::move(event.brought)});
    return;
  }
  if (seat->session != nullptr || seat->held_port != nullptr) {
    LeaveSeat(seat, Leaving::kExpelled,
              Status(ErrorId::kProtocolViolation, "a session was attached twice"));
    return;
  }
  seat->held_port = std::move(event.port);
  seat->held_rcache = std::move(event.rcache);
  seat->held_brought = std::move(event.brought);
  Job* job = seat->job;
  if (job->phase == JobPhase::kZeroing && job->zeroing_connection == seat->connection)
    job->zeroed = true;
  OpenIfReady(job);
  if (job->phase == JobPhase::kOpen) AttachHeld(job);
}

// A job that a later server can find has its ranges on NVMe for good.
bool JobDesk::OpenIfReady(Job* job) {
  if (job->phase != JobPhase::kZeroing || !job->zeroed) return false;
  if (job->states->spills() && !parts_.tier->IsDurable(*job->states)) return false;
  job->states->WriteFirstRecords({job->id, job->nonce, job->fingerprint, job->uid, job->note});
  TP_POINT("server.records_written");
  job->index_slot = parts_.index->Add(job->id, job->nonce, job->states->extents().front());
  job->phase = JobPhase::kOpen;
  TP_POINT("server.job_opened");
  return true;
}

void JobDesk::AttachHeld(Job* job) {
  for (size_t rank = 0; rank < job->seats.size(); ++rank) {
    Seat* seat = job->seats[rank];
    if (seat != nullptr && seat->held_port != nullptr) Attach(seat);
  }
}

// The streams of the GPU that a rank brought, opened for the first of them.
Result<GpuStreams*> JobDesk::StreamsOf(Gpu* gpu) {
  for (const auto& open : tables_->gpus) {
    if (&open->gpu() != gpu) continue;
    if (open->failed()) return open->status();
    return open.get();
  }
  auto& roots = tables_->roots;
  const auto same = [gpu](const auto& root) { return root->name() == gpu->root_complex(); };
  const auto number =
      static_cast<size_t>(std::find_if(roots.begin(), roots.end(), same) - roots.begin());
  if (number == roots.size()) {
    roots.push_back(
        std::make_unique<RootComplex>(gpu->root_complex(), number, options_.gpu_copy_bytes));
    // Turns allocate nothing.
    for (const auto& job : tables_->jobs) job->RootShare(number, LaneWay::kToRcache);
  }
  TP_ASSIGN_OR_RETURN(std::unique_ptr<GpuStreams> streams,
                      GpuStreams::Open(gpu, roots[number].get()));
  tables_->gpus.push_back(std::move(streams));
  return tables_->gpus.back().get();
}

Result<std::unique_ptr<Session>> JobDesk::MakeSession(Seat* seat) {
  if (seat->held_rcache == nullptr || seat->held_rcache->bytes() < seat->rcache_bytes) {
    return Status(ErrorId::kInternal, "the rCache is smaller than granted");
  }
  Session::Parts parts{.id = seat->session_id, .rank = seat->rank};
  if (seat->held_brought.gpu != nullptr) {
    TP_ASSIGN_OR_RETURN(parts.gpu, StreamsOf(seat->held_brought.gpu));
    for (const auto& root : tables_->roots)
      seat->job->RootShare(root->number(), LaneWay::kToRcache);
  } else {
    TP_ASSIGN_OR_RETURN(parts.stream, parts_.device->OpenStream());
  }
  parts.port = std::move(seat->held_port);
  parts.rcache = std::move(seat->held_rcache);
  parts.brought = std::move(seat->held_brought);
  return std::make_unique<Session>(std::move(parts));
}

void JobDesk::Attach(Seat* seat) {
  if (seat->held_brought.gpu != nullptr) seat->job->states->NoteGpus(parts_.own_server);
  if (const Status taken = TakeShare(seat); !taken.ok())
    return LeaveSeat(seat, Leaving::kExpelled, taken);
  auto session = MakeSession(seat);
  const ConnectionId connection = seat->connection;
  if (!session.ok() && AwaitAgain(seat)) return Send(SessionOver{connection, session.status()});
  if (!session.ok()) return LeaveSeat(seat, Leaving::kExpelled, session.status());
  seat->session = std::move(session).value();
  seat->job->states->SetRank(seat->rank, {seat->nonce, seat->process_start, seat->pid});
  TP_POINT("server.session_attached");
  const JobStates& states = *seat->job->states;
  const StepRecord& step = states.last_step();
  Attached attached{
      .connection = seat->connection, .session = seat->session_id, .job = seat->job->id};
  attached.weights_ready = states.weights_ready();
  attached.sealed_version = states.sealed_version();
  attached.data_cursor = step.data_cursor;
  attached.loss_scale = step.loss_scale;
  attached.scaler_steps = step.scaler_steps;
  attached.random_state = step.random_state;
  attached.pool_bytes = states.pool_bytes();
  attached.job_nonce = seat->job->nonce;
  attached.last_skipped = step.skipped != 0;
  attached.note = seat->job->note;
  attached.attempt = states.attempt();
  attached.spec = states.shared_spec();
  Tell(seat->job->uid, LogLevel::kInfo, "rank attached",
       {{"job", seat->job->id},
        {"rank", seat->rank},
        {"session", seat->session_id},
        {"version", attached.sealed_version},
        {"nvme_bytes", states.nvme_total()}});
  Send(std::move(attached));
  // It may have been away when the others were told.
  if (seat->job->run() == RunState::kPeerLost)
    Send(PeerGone{seat->connection, seat->job->FirstMissing()});
}

void JobDesk::On(DeclareSchedule event) {
  Seat* seat = tables_->FindSeat(event.connection);
  if (seat == nullptr) return;
  seat->job->updates.SetOrder(std::move(event.order));
}

void JobDesk::On(SnapshotWanted) {
  snapshots_.Ask();
}

bool JobDesk::TendSnapshot() {
  if (!snapshots_.asked()) return false;
  if (auto built = snapshots_.Progress()) Send(SnapshotReady{std::move(built)});
  return true;
}

}  // namespace tidepool::memserver

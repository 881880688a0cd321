#include "memserver/jobs/snapshot_builder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/planted.h"
#include "memserver/jobs/job_lease.h"
#include "shm/spec/frozen.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {
namespace {

const char* StateOf(const Job& job) {
  if (job.phase == JobPhase::kRemoving) return "ending";
  if (!job.HasRanks()) return "detached";
  if (!job.HasSeats()) return "awaiting";
  if (!job.IsRecorded() || !job.states->weights_ready()) return "loading";
  return job.updates.active() ? "updating" : "training";
}

uint64_t RcacheOf(const Job& job) {
  uint64_t bytes = 0;
  for (const Seat* seat : job.seats)
    bytes += seat != nullptr && !seat->brings_rcache ? seat->rcache_bytes : 0;
  return bytes;
}

SessionRow RowOf(Seat& seat) {
  SessionRow row{.session = seat.session_id,
                 .rank = seat.rank,
                 .pid = seat.pid,
                 .rcache_bytes = seat.rcache_bytes};
  if (seat.session == nullptr) return row;
  row.bytes_h2d = seat.session->bytes_h2d;
  row.bytes_d2h = seat.session->bytes_d2h;
  row.requests = seat.session->requests();
  row.requests_parked = seat.session->requests_parked;
  return row;
}

// Bytes of a rank's share on `gpu` (null: on any). Memory that only the keeper still holds counts.
uint64_t BytesOn(const Job& job, Rank rank, const GpuStreams* gpu) {
  const GpuShare& share = job.gpus.shares()[rank];
  const bool none = share.life == GpuShare::Life::kNone || share.life == GpuShare::Life::kDropped;
  return none || (gpu != nullptr && share.gpu != gpu) ? 0 : shm::GpuShareBytes(job.spec(), rank);
}

ChunkRow RowOf(const Job& job, ChunkId id) {
  const Chunk& chunk = job.states->chunk(id);
  ChunkRow row;
  row.state = chunk.state;
  row.data_group = chunk.data_group;
  row.elements = chunk.elements;
  row.bytes = job.states->plane_bytes(id);
  row.spilled = chunk.spilled;
  row.on_gpu = chunk.on_gpu;
  row.weights_spilled = job.states->window().Covers(id);
  row.in_window = row.weights_spilled && job.states->HoldsWeights(id);
  const Version version = job.IsRecorded() ? chunk.version : kNoVersion;
  row.version = version == kNoVersion ? 0 : version;
  row.ranks_cached = chunk.ranks_cached;
  row.fetches = chunk.fetches;
  return row;
}

ChunkRow RowOf(const FrozenUse& use, DType dtype) {
  ChunkRow row;
  row.state = use.chunk->sealed ? ChunkState::kFrozen : ChunkState::kEmpty;
  row.elements = use.chunk->name.bytes / BytesOf(dtype);
  row.bytes = use.chunk->name.bytes;
  row.ranks_cached = use.ranks_cached;
  row.fetches = use.fetches;
  return row;
}

// The gradients that ranks have sent tell where the open step stands; fetches do not: they come in
// both passes.
void TellGradients(const Job& job, StepProgress* step) {
  const uint32_t all = job.spec().micro_batches;
  const GradientIntake::Reach reach = job.intake.reach();
  const bool level = reach.shards == job.states->shards();
  const bool ending = level && reach.micro_batches == all;
  step->phase = ending ? "ending" : level ? "forward" : "backward";
  step->micro_batches = all;
  step->micro_batch = level ? std::min(reach.micro_batches + 1, all) : reach.micro_batches;
  step->chunks_done = level && !ending ? 0 : reach.chunks;
}

StepProgress ProgressOf(const Job& job) {
  StepProgress step;
  step.fetches = job.sealed_traffic.fetches;
  step.fetches_waited = job.sealed_traffic.fetches_waited;
  step.bytes_fetched = job.sealed_traffic.bytes;
  if (!job.IsRecorded() || !job.states->weights_ready()) return step;
  if (!job.updates.active()) {
    TellGradients(job, &step);
    return step;
  }
  step.phase = "updating";
  step.chunks_done = job.spec().chunks.size() - job.updates.chunks_left();
  return step;
}

void MarkUnanswered(const shm::Request& request, Rank rank, std::vector<ChunkRow>* chunks) {
  ChunkRow& row = (*chunks)[request.chunk];
  (request.op == static_cast<uint32_t>(shm::Op::kFetch) ? row.ranks_fetching : row.ranks_sending) |=
      uint64_t{1} << rank;
}

// Both lists hold only requests whose chunk was checked.
void MarkUnanswered(Seat& seat, std::vector<ChunkRow>* chunks) {
  const CopyLane& lane = seat.session->lane();
  for (uint32_t i = 0; i < lane.size(); ++i) MarkUnanswered(lane.at(i).request, seat.rank, chunks);
  for (const shm::Request& request : seat.session->waiting().requests())
    MarkUnanswered(request, seat.rank, chunks);
}

uint64_t ChunksIn(const Job& job) {
  return job.states->spec().chunks.size() + job.states->frozen().size();
}

ChunkRow AnyRowOf(const Job& job, ChunkId id) {
  const shm::JobSpec& spec = job.spec();
  return spec.IsFrozen(id) ? RowOf(job.states->frozen(id), spec.dtype) : RowOf(job, id);
}

// But for the rows of its chunks, which are `chunks`, nothing of this is gone through chunk by
// chunk.
JobRow RowOf(const Job& job, bool demoting, std::vector<ChunkRow> chunks) {
  const shm::JobSpec& spec = job.spec();
  JobRow row;
  row.job = job.id;
  row.spec = job.states->shared_spec();
  row.name = spec.name;
  row.uid = job.uid;
  row.state = demoting ? "demoting" : StateOf(job);
  row.world = spec.world;
  row.dtype = spec.dtype;
  row.parameters = spec.ParameterCount();
  row.pool_bytes = job.states->pool_bytes();
  row.nvme_bytes = job.states->nvme_total();
  row.chunks_spilled = job.states->chunks_spilled();
  row.weight_slots = job.states->window().slots().size();
  row.weights_filled = job.states->window().fills;
  if (row.weight_slots > 0)
    row.chunks_weights_spilled = spec.chunks.size() - job.states->window().first();
  row.chunks_demoted = job.states->demoted();
  for (Rank rank = 0; rank < job.gpus.shares().size(); ++rank)
    row.gpu_bytes += BytesOn(job, rank, nullptr);
  row.chunks_on_gpu = spec.states_on_gpu;
  row.rcache_bytes = RcacheOf(job);
  row.account = job.account;
  row.quota = job.quota;
  row.suspended = job.suspended;
  row.optimizer_bytes = job.worker_share.served;
  row.step_seconds = job.step_seconds;
  row.steps_skipped = job.steps_skipped;
  row.step = ProgressOf(job);
  if (job.IsRecorded()) {
    row.version = job.states->sealed_version();
    row.grad_norm = job.states->last_step().grad_norm;
  }
  row.frozen_bytes = shm::FrozenPoolBytes(spec);
  row.chunks = std::move(chunks);
  for (Seat* seat : job.seats) {
    if (seat == nullptr) continue;
    row.sessions.push_back(RowOf(*seat));
    if (seat->session != nullptr) MarkUnanswered(*seat, &row.chunks);
  }
  return row;
}

NvmeRow RowOf(const StateTier& tier, const ScrubRow& scrub) {
  NvmeRow row;
  row.bytes = tier.capacity_bytes();
  row.bytes_used = tier.used_bytes();
  row.bytes_read = tier.transfers().bytes_read();
  row.bytes_written = tier.transfers().bytes_written();
  row.repetitions = tier.transfers().repetitions();
  row.in_flight = tier.in_flight();
  row.stalled = tier.transfers().Stalled();
  for (uint32_t d = 0; d < tier.directories().size(); ++d) {
    const nvme::SlotStore& store = tier.store(d);
    NvmeDirectoryRow directory{.path = tier.directory(d).path, .bytes = store.manifest().capacity};
    directory.bytes_used = store.manifest().used_bytes();
    for (const uint32_t file :
         {store.files().data, store.files().manifests[0], store.files().manifests[1]}) {
      directory.bytes_read += tier.transfers().moved(file).read;
      directory.bytes_written += tier.transfers().moved(file).written;
    }
    directory.failed = store.poisoned();
    if (directory.failed) row.failed = directory.path;
    row.directories.push_back(std::move(directory));
  }
  row.engine = tier.engine();
  row.scrub = scrub;
  return row;
}

UnwrittenRow RowOf(const StateTier& tier, const Job& job, const StandIn& at) {
  const SpillPlace& place = job.states->chunk(at.chunk).spill;
  return {
      .job = job.id,
      .name = job.spec().name,
      .chunk = at.chunk,
      .piece = at.piece,
      .directory = tier.directory(place.directory).path,
      .offset = place.offset + at.slot * place.slot_bytes + shm::PieceOffset(job.spec(), at.piece),
      .error = at.error};
}

LateRow RowOf(const StateTier& tier, const Tables& tables, const TierLate& late) {
  const Job* job = late.of_tables ? nullptr : tables.FindJob(late.transfer.job);
  return {.job = job != nullptr ? job->id : 0,
          .name = job != nullptr ? job->spec().name : std::string(),
          .chunk = late.transfer.chunk,
          .piece = late.transfer.piece,
          .directory = tier.directory(late.transfer.directory).path,
          .offset = late.offset,
          .write = late.of_tables || late.transfer.kind == nvme::IoKind::kWrite,
          .seconds = static_cast<double>(late.waited_ns) / kNsPerSecond,
          .lost = late.lost};
}

void AddUnwritten(const StateTier& tier, const Job& job, NvmeRow* row) {
  const auto is_full = [row] { return row->unwritten.size() >= kUnwrittenRowsMax; };
  const StandIns& stand_ins = job.states->stand_ins();
  row->pieces_in_pool += stand_ins.all().size();
  row->bytes_in_pool += stand_ins.bytes();
  row->pieces_waiting += job.spills.put_off().size();
  for (const StandIn& each : stand_ins.all()) {
    if (is_full()) return;
    row->unwritten.push_back(RowOf(tier, job, each));
  }
  for (const SpillQueue::PutOffPiece& each : job.spills.put_off()) {
    if (is_full()) return;
    const auto slot = static_cast<uint32_t>(each.last.epoch % 2);
    UnwrittenRow waiting = RowOf(tier, job,
                                 StandIn{.chunk = each.last.chunk,
                                         .piece = each.last.piece,
                                         .slot = slot,
                                         .error = each.last.error,
                                         .extent = {}});
    waiting.in_pool = false;
    row->unwritten.push_back(std::move(waiting));
  }
}

DemotionRow DemotionOf(const Tables& tables) {
  const Counters& counters = tables.counters;
  DemotionRow row{.done = counters.demotions,
                  .failed = counters.demotions_failed,
                  .dropped = counters.demotions_dropped,
                  .bytes_freed = counters.demoted_bytes};
  const Job* job = tables.FindJob(tables.demotion.job());
  if (job == nullptr) return row;
  row.job = job->id;
  row.name = job->spec().name;
  row.pieces = tables.demotion.pieces();
  row.pieces_written = tables.demotion.pieces_written();
  return row;
}

WaitingRow RowOf(const WaitingRank& rank, int64_t now) {
  const shm::JobSpec& spec = *rank.event.spec;
  WaitingRow row{.name = spec.name,
                 .account = rank.account,
                 .uid = rank.event.uid,
                 .rank = rank.event.rank,
                 .pid = rank.event.pid};
  row.priority = rank.priority;
  row.pool_bytes = shm::HostBytesOf(spec, shm::kNoSpill);
  row.rcache_bytes = rank.event.brings_rcache ? 0 : spec.world * spec.rcache_bytes;
  row.waited_ns = now - rank.since_ns;
  row.why = rank.why.what();
  return row;
}

// Rows of the accounts that have a rule, hold something, or wait.
std::vector<AccountRow> AccountRows(const Ledger& ledger, const Tables& tables) {
  std::set<std::string> names;
  for (const QuotaRule& rule : ledger.quotas) names.insert(rule.account);
  for (const Holding& holding : ledger.holdings) names.insert(holding.account);
  for (const WaitingRank& rank : tables.waiting) names.insert(rank.account);
  std::vector<AccountRow> rows;
  for (const std::string& name : names) {
    const Room room = RoomFor(ledger, name);
    rows.push_back(
        {name, ledger.QuotaOf(name), room.account_used, room.bytes, ledger.NvmeUsedBy(name)});
  }
  return rows;
}

GpuRow RowOf(const GpuStreams& streams) {
  const Gpu& gpu = streams.gpu();
  GpuRow row;
  row.name = gpu.device().name();
  row.model = gpu.facts().name;
  row.uuid = device::Text(gpu.facts().uuid);
  row.form = gpu.fell_back() ? "ipc" : "vmm";
  row.note = gpu.form_note();
  row.bytes = gpu.facts().total_bytes;
  row.bytes_free = gpu.free_bytes();
  row.bytes_taken = gpu.bytes_taken();
  row.pool_bytes = gpu.pool_bytes();
  row.pinned_bytes = gpu.registered_bytes();
  row.pin_seconds = gpu.register_seconds();
  if (!gpu.pin_failure().ok()) row.pin_failure = gpu.pin_failure().Line();
  if (streams.failed()) row.failure = streams.status().Line();
  row.sessions = streams.sessions;
  row.bytes_h2d = streams.of(LaneWay::kToRcache).bytes;
  row.bytes_d2h = streams.of(LaneWay::kToPool).bytes;
  row.copies_unpinned = streams.copies_unregistered;
  return row;
}

}  // namespace

void SnapshotBuilder::Ask() {
  if (asked_++ == 0) Begin();
}

void SnapshotBuilder::Begin() {
  jobs_.clear();
  next_job_ = 0;
  for (const auto& job : tables_->jobs) {
    jobs_.push_back({job->id, {}});
    jobs_.back().chunks.reserve(ChunksIn(*job));
  }
}

std::shared_ptr<const Snapshot> SnapshotBuilder::Progress() {
  if (!LookAtChunks()) return nullptr;
  std::shared_ptr<const Snapshot> built = Build();
  jobs_.clear();
  if (--asked_ > 0) Begin();
  return built;
}

// As many as a turn may; true when those of all jobs are there.
bool SnapshotBuilder::LookAtChunks() {
  uint64_t left = TP_PLANTED("jobs.snapshot_in_one_turn") ? UINT64_MAX : kSnapshotChunksPerTurn;
  for (; next_job_ < jobs_.size(); ++next_job_) {
    const Job* job = tables_->FindJob(jobs_[next_job_].job);
    if (job == nullptr) continue;  // it has gone since
    std::vector<ChunkRow>& rows = jobs_[next_job_].chunks;
    for (; rows.size() < ChunksIn(*job); --left) {
      if (left == 0) return false;
      rows.push_back(AnyRowOf(*job, static_cast<ChunkId>(rows.size())));
    }
  }
  return true;
}

std::shared_ptr<const Snapshot> SnapshotBuilder::Build() {
  const Tables& tables = *tables_;
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->uptime_ns = parts_.clock->NowNs() - tables.started_ns;
  snapshot->draining = tables.draining || tables.closed;
  snapshot->ready = !snapshot->draining;
  snapshot->pool_bytes = parts_.pool->total_bytes();
  snapshot->pool_used = parts_.pool->total_bytes() - parts_.pool->free_bytes();
  snapshot->pool_frozen = tables.frozen->pool_bytes();
  snapshot->frozen_chunks = tables.frozen->chunks().size();
  snapshot->pool_huge_bytes = parts_.pool->facts().huge_page_bytes;
  snapshot->pool_touch_seconds = parts_.pool->facts().touch_seconds;
  snapshot->rcache_limit = options_.rcache_limit;
  if (parts_.tier != nullptr) {
    snapshot->nvme = RowOf(*parts_.tier, tables.scrub.Row(parts_.clock->NowNs()));
    snapshot->nvme.writes_failed = tables.counters.states_unwritten;
    snapshot->nvme.demotion = DemotionOf(tables);
    for (const auto& job : tables.jobs) AddUnwritten(*parts_.tier, *job, &snapshot->nvme);
    for (const TierLate& late : parts_.tier->Late())
      snapshot->nvme.late.push_back(RowOf(*parts_.tier, tables, late));
  }
  snapshot->workers = parts_.team->threads();
  snapshot->prefetch = parts_.team->tuning().prefetch_elements;
  snapshot->turns = tables.counters.turns;
  snapshot->long_turns = tables.counters.long_turns;
  snapshot->longest_turn_ns = tables.counters.longest_turn_ns;
  snapshot->bytes_h2d = tables.counters.bytes_h2d;
  snapshot->bytes_d2h = tables.counters.bytes_d2h;
  snapshot->parameters_updated = tables.counters.parameters_updated;
  snapshot->sessions_ended_badly = tables.counters.sessions_ended_badly;
  for (JobChunks& chunks : jobs_) {
    const Job* const job = tables.FindJob(chunks.job);
    if (job == nullptr) continue;
    snapshot->jobs.push_back(
        RowOf(*job, tables.demotion.job() == job->id, std::move(chunks.chunks)));
    snapshot->jobs.back().lease_ns = options_.lease_ns;
    snapshot->jobs.back().kept_until = KeptUntilSeconds(*job, options_, *parts_.clock).value_or(0);
    snapshot->rcache_used += snapshot->jobs.back().rcache_bytes;
    for (const SessionRow& session : snapshot->jobs.back().sessions) {
      snapshot->bytes_h2d += session.bytes_h2d;
      snapshot->bytes_d2h += session.bytes_d2h;
    }
  }
  for (const auto& gpu : tables.gpus) {
    snapshot->gpus.push_back(RowOf(*gpu));
    for (const auto& job : tables.jobs) {
      for (Rank rank = 0; rank < job->gpus.shares().size(); ++rank)
        snapshot->gpus.back().state_bytes += BytesOn(*job, rank, gpu.get());
    }
  }
  snapshot->lost = tables.lost.all();
  for (const WaitingRank& rank : tables.waiting)
    snapshot->waiting.push_back(RowOf(rank, parts_.clock->NowNs()));
  for (const SetAside& job : tables.set_aside)
    snapshot->set_aside.push_back({job.states().spec().name, job.uid, job.why.what()});
  for (const Mute& mute : tables.mutes) {
    if (const int64_t left = mute.until_ns - parts_.clock->NowNs(); left > 0)
      snapshot->mutes.push_back({mute.code, left});
  }
  snapshot->config = tables.config;
  snapshot->accounts = AccountRows(BuildLedger(parts_, options_, tables), tables);
  return snapshot;
}

Ledger BuildLedger(const Parts& parts, const LoopOptions& options, const Tables& tables) {
  Ledger ledger;
  ledger.pool_bytes = parts.pool->total_bytes();
  ledger.rcache_limit = options.rcache_limit;
  ledger.jobs_max = tables.live.jobs_max;
  ledger.sessions_max = options.sessions_max;
  ledger.fallback = tables.live.quota_fallback;
  ledger.quotas = tables.quotas.Rules();
  for (const auto& job : tables.jobs) {
    Holding holding{.job = job->spec().name,
                    .account = job->account,
                    .pool_bytes = job->states->pool_bytes(),
                    .uid = job->uid,
                    .nvme_bytes = job->states->nvme_total(),
                    .id = job->id,
                    .kept_until = KeptUntilSeconds(*job, options, *parts.clock).value_or(0)};
    // Counts what all ranks of the run may come to hold, whether they are there yet or not.
    if (job->HasRanks()) {
      holding.ranks = job->spec().world;
      holding.rcache_bytes = job->brings_rcache ? 0 : job->spec().world * job->spec().rcache_bytes;
    }
    ledger.holdings.push_back(std::move(holding));
  }
  for (const SetAside& job : tables.set_aside) {
    ledger.holdings.push_back(
        {.job = job.states().spec().name,
         .account = tables.quotas.AccountOf(job.states().spec().name, job.uid),
         .pool_bytes = job.states().pool_bytes(),
         .uid = job.uid,
         .nvme_bytes = job.states().nvme_total()});
  }
  for (const auto& [uid, bytes] : tables.frozen->BytesByUser()) {
    const std::string account = UserAccount(uid);
    ledger.holdings.push_back({.job = account + " in frozen chunks",
                               .account = account,
                               .pool_bytes = bytes,
                               .uid = uid,
                               .is_frozen = true});
  }
  return ledger;
}

}  // namespace tidepool::memserver

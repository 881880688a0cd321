#include "memserver/jobs/snapshot_builder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "memserver/jobs/job_lease.h"
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

// Of a share of the job; on this GPU, or on any. Memory that the keeper alone still holds counts.
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

// Of the pool, each frozen chunk of the job once.
uint64_t FrozenBytesOf(const Job& job) {
  std::set<const FrozenChunk*> counted;
  uint64_t bytes = 0;
  for (const FrozenUse& use : job.states->frozen())
    bytes += counted.insert(use.chunk).second ? use.chunk->extent.bytes : 0;
  return bytes;
}

// The gradients that ranks have sent tell where the open step stands; fetches do not: they come in
// both passes.
void CountGradients(const Job& job, StepProgress* step) {
  const uint32_t all = job.spec().micro_batches;
  uint32_t least = all, most = 0;
  const auto intakes_of = [&](const Chunk& chunk) {
    return job.states->intakes().subspan(chunk.first_intake, chunk.shards);
  };
  for (const Chunk& chunk : job.states->chunks()) {
    for (const ShardIntake& intake : intakes_of(chunk)) {
      least = std::min(least, intake.micro_batches_accepted);
      most = std::max(most, intake.micro_batches_accepted);
    }
  }
  step->phase = least == all ? "ending" : least == most ? "forward" : "backward";
  step->micro_batches = all;
  step->micro_batch = least == most ? std::min(most + 1, all) : most;
  for (const Chunk& chunk : job.states->chunks()) {
    const auto intakes = intakes_of(chunk);
    const auto in = [&](const ShardIntake& intake) {
      return intake.micro_batches_accepted >= step->micro_batch;
    };
    step->chunks_done += std::all_of(intakes.begin(), intakes.end(), in) ? 1 : 0;
  }
}

StepProgress ProgressOf(const Job& job) {
  StepProgress step;
  step.fetches = job.sealed_traffic.fetches;
  step.fetches_waited = job.sealed_traffic.fetches_waited;
  step.bytes_fetched = job.sealed_traffic.bytes;
  if (!job.IsRecorded() || !job.states->weights_ready()) return step;
  if (!job.updates.active()) {
    CountGradients(job, &step);
    return step;
  }
  step.phase = "updating";
  for (const Chunk& chunk : job.states->chunks())
    step.chunks_done += chunk.version == job.states->sealed_version() ? 1 : 0;
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

JobRow RowOf(const Job& job, bool demoting) {
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
  for (const Chunk& chunk : job.states->chunks()) row.chunks_spilled += chunk.spilled ? 1 : 0;
  row.weight_slots = job.states->window().slots().size();
  row.weights_filled = job.states->window().fills;
  if (row.weight_slots > 0)
    row.chunks_weights_spilled = job.states->chunks().size() - job.states->window().first();
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
  row.frozen_bytes = FrozenBytesOf(job);
  row.chunks.reserve(job.states->chunks().size() + job.states->frozen().size());
  for (ChunkId id = 0; id < spec.chunks.size(); ++id) row.chunks.push_back(RowOf(job, id));
  for (const FrozenUse& use : job.states->frozen()) row.chunks.push_back(RowOf(use, spec.dtype));
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
  const auto add = [row](UnwrittenRow unwritten) {
    if (row->unwritten.size() < kUnwrittenRowsMax) row->unwritten.push_back(std::move(unwritten));
  };
  const StandIns& stand_ins = job.states->stand_ins();
  row->pieces_in_pool += stand_ins.all().size();
  row->bytes_in_pool += stand_ins.bytes();
  row->pieces_waiting += job.spills.put_off().size();
  for (const StandIn& each : stand_ins.all()) add(RowOf(tier, job, each));
  for (const SpillQueue::PutOffPiece& each : job.spills.put_off()) {
    const auto slot = static_cast<uint32_t>(each.last.epoch % 2);
    UnwrittenRow waiting = RowOf(tier, job,
                                 StandIn{.chunk = each.last.chunk,
                                         .piece = each.last.piece,
                                         .slot = slot,
                                         .error = each.last.error,
                                         .extent = {}});
    waiting.in_pool = false;
    add(std::move(waiting));
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

// Accounts that have a rule, hold something, or wait.
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

std::shared_ptr<const Snapshot> BuildSnapshot(const Parts& parts, const LoopOptions& options,
                                              const Tables& tables) {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->uptime_ns = parts.clock->NowNs() - tables.started_ns;
  snapshot->draining = tables.draining || tables.closed;
  snapshot->ready = !snapshot->draining;
  snapshot->pool_bytes = parts.pool->total_bytes();
  snapshot->pool_used = parts.pool->total_bytes() - parts.pool->free_bytes();
  snapshot->pool_frozen = tables.frozen->pool_bytes();
  snapshot->frozen_chunks = tables.frozen->chunks().size();
  snapshot->pool_huge_bytes = parts.pool->facts().huge_page_bytes;
  snapshot->pool_touch_seconds = parts.pool->facts().touch_seconds;
  snapshot->rcache_limit = options.rcache_limit;
  if (parts.tier != nullptr) {
    snapshot->nvme = RowOf(*parts.tier, tables.scrub.Row(parts.clock->NowNs()));
    snapshot->nvme.writes_failed = tables.counters.states_unwritten;
    snapshot->nvme.demotion = DemotionOf(tables);
    for (const auto& job : tables.jobs) AddUnwritten(*parts.tier, *job, &snapshot->nvme);
    for (const TierLate& late : parts.tier->Late())
      snapshot->nvme.late.push_back(RowOf(*parts.tier, tables, late));
  }
  snapshot->workers = parts.team->threads();
  snapshot->prefetch = parts.team->tuning().prefetch_elements;
  snapshot->turns = tables.counters.turns;
  snapshot->long_turns = tables.counters.long_turns;
  snapshot->longest_turn_ns = tables.counters.longest_turn_ns;
  snapshot->bytes_h2d = tables.counters.bytes_h2d;
  snapshot->bytes_d2h = tables.counters.bytes_d2h;
  snapshot->parameters_updated = tables.counters.parameters_updated;
  snapshot->sessions_ended_badly = tables.counters.sessions_ended_badly;
  for (const auto& job : tables.jobs) {
    snapshot->jobs.push_back(RowOf(*job, tables.demotion.job() == job->id));
    snapshot->jobs.back().lease_ns = options.lease_ns;
    snapshot->jobs.back().kept_until = KeptUntilSeconds(*job, options, *parts.clock).value_or(0);
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
    snapshot->waiting.push_back(RowOf(rank, parts.clock->NowNs()));
  for (const Mute& mute : tables.mutes) {
    if (const int64_t left = mute.until_ns - parts.clock->NowNs(); left > 0)
      snapshot->mutes.push_back({mute.code, left});
  }
  snapshot->config = tables.config;
  snapshot->accounts = AccountRows(BuildLedger(parts, options, tables), tables);
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
    // What all ranks of the run may come to hold, whether they are there yet or not.
    if (job->HasRanks()) {
      holding.ranks = job->spec().world;
      holding.rcache_bytes = job->brings_rcache ? 0 : job->spec().world * job->spec().rcache_bytes;
    }
    ledger.holdings.push_back(std::move(holding));
  }
  for (const SetAside& job : tables.set_aside) {
    const std::string& name = job.states->spec().name;
    ledger.holdings.push_back({.job = name,
                               .account = tables.quotas.AccountOf(name, job.uid),
                               .pool_bytes = job.states->pool_bytes(),
                               .uid = job.uid,
                               .nvme_bytes = job.states->nvme_total()});
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

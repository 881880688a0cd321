#include "memserver/jobs/rows/snapshot_builder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/planted.h"
#include "memserver/jobs/admission/build_ledger.h"
#include "memserver/jobs/job_lease.h"
#include "memserver/jobs/rows/job_rows.h"

namespace tidepool::memserver {
namespace {

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

UnwrittenRow RowOf(const StateTier& tier, const Job& job, const FallbackSlot& at) {
  const SpillPlace& place = job.states->chunk(at.chunk).spill;
  return {.job = job.id,
          .name = job.spec().name,
          .chunk = at.chunk,
          .piece = at.piece,
          .directory = tier.directory(place.directory).path,
          .offset = place.offset + at.slot * place.slot_bytes +
                    shm::PieceOffset(job.spec(), at.chunk, at.piece),
          .error = at.error};
}

LateRow RowOf(const StateTier& tier, const Tables& tables, const TierLate& late) {
  const Job* job = late.of_tables ? nullptr : tables.FindJob(late.piece.job);
  return {.job = job != nullptr ? job->id : 0,
          .name = job != nullptr ? job->spec().name : std::string(),
          .chunk = late.piece.chunk,
          .piece = late.piece.piece,
          .directory = tier.directory(late.directory).path,
          .offset = late.offset,
          .write = late.is_write(),
          .seconds = static_cast<double>(late.waited_ns) / kNsPerSecond,
          .lost = late.lost};
}

void AddUnwritten(const StateTier& tier, const Job& job, NvmeRow* row) {
  const auto is_full = [row] { return row->unwritten.size() >= kUnwrittenRowsMax; };
  const FallbackSlots& fallback_slots = job.states->fallback_slots();
  row->pieces_in_pool += fallback_slots.all().size();
  row->bytes_in_pool += fallback_slots.bytes();
  row->pieces_waiting += job.spills.put_off().size();

  for (const FallbackSlot& each : fallback_slots.all()) {
    if (is_full()) return;
    row->unwritten.push_back(RowOf(tier, job, each));
  }

  for (const SpillQueue::PutOffPiece& each : job.spills.put_off()) {
    if (is_full()) return;
    const auto slot = static_cast<uint32_t>(each.last.epoch % 2);
    UnwrittenRow waiting = RowOf(tier, job,
                                 FallbackSlot{.chunk = each.last.chunk,
                                              .piece = each.last.piece,
                                              .slot = slot,
                                              .error = each.last.error,
                                              .extent = {}});

    waiting.in_pool = false;
    row->unwritten.push_back(std::move(waiting));
  }
}

DemotionRow DemotionOf(const Tables& tables, const Demotion& demotion) {
  const Counters& counters = tables.counters;
  DemotionRow row{.done = counters.demotions,
                  .failed = counters.demotions_failed,
                  .dropped = counters.demotions_dropped,
                  .bytes_freed = counters.demoted_bytes};

  const Job* job = tables.FindJob(demotion.job());
  if (job == nullptr) return row;
  row.job = job->id;
  row.name = job->spec().name;
  row.pieces = demotion.pieces();
  row.pieces_written = demotion.pieces_written();
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
  row.rcache_bytes = rank.event.client_owned_rcache ? 0 : spec.world * spec.rcache_bytes;
  row.waited_ns = now - rank.since_ns;
  row.why = rank.why.what();
  return row;
}

// Rows of the accounts that have a rule, hold something, or wait.
std::vector<AccountRow> AccountRows(const Ledger& ledger, const std::vector<WaitingRank>& waiting) {
  std::set<std::string> names;
  for (const QuotaRule& rule : ledger.quotas) names.insert(rule.account);
  for (const Holding& holding : ledger.holdings) names.insert(holding.account);
  for (const WaitingRank& rank : waiting) names.insert(rank.account);

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
  TakeUpJobs();
}

// A job that arrived meanwhile is part of the last turn's sums of pool memory, so it needs its row.
void SnapshotBuilder::TakeUpJobs() {
  for (const auto& job : tables_->jobs) {
    const auto is_it = [&job](const JobChunks& chunks) { return chunks.job == job->id; };
    if (std::any_of(jobs_.begin(), jobs_.end(), is_it)) continue;
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

// Visits as many chunks as a turn may. True when those of all jobs are done.
bool SnapshotBuilder::LookAtChunks() {
  uint64_t left = TP_PLANTED("jobs.snapshot_in_one_turn") ? UINT64_MAX : kSnapshotChunksPerTurn;
  if (!TP_PLANTED("jobs.snapshot_without_newcomers")) TakeUpJobs();
  for (; next_job_ < jobs_.size(); ++next_job_) {
    const Job* job = tables_->FindJob(jobs_[next_job_].job);
    if (job == nullptr) continue;  // it is gone by now

    std::vector<ChunkRow>& rows = jobs_[next_job_].chunks;
    for (; rows.size() < ChunksIn(*job); --left) {
      if (left == 0) return false;
      rows.push_back(ChunkRowOf(*job, static_cast<ChunkId>(rows.size())));
    }
  }
  return true;
}

void SnapshotBuilder::AddPool(Snapshot* snapshot) const {
  snapshot->pool_bytes = neighbours_.pool->total_bytes();
  snapshot->pool_used = neighbours_.pool->total_bytes() - neighbours_.pool->free_bytes();
  snapshot->pool_frozen = tables_->frozen->pool_bytes();
  snapshot->frozen_chunks = tables_->frozen->chunks().size();
  snapshot->pool_huge_bytes = neighbours_.pool->facts().huge_page_bytes;
  snapshot->pool_touch_seconds = neighbours_.pool->facts().touch_seconds;
  snapshot->rcache_limit = options_.rcache_limit;
}

void SnapshotBuilder::AddNvme(Snapshot* snapshot) const {
  snapshot->nvme = RowOf(*neighbours_.tier, tables_->scrub.Row(neighbours_.clock->NowNs()));
  snapshot->nvme.writes_failed = tables_->counters.states_unwritten;
  snapshot->nvme.demotion = DemotionOf(*tables_, sources_.demotion);
  for (const auto& job : tables_->jobs) AddUnwritten(*neighbours_.tier, *job, &snapshot->nvme);
  for (const TierLate& late : neighbours_.tier->Late())
    snapshot->nvme.late.push_back(RowOf(*neighbours_.tier, *tables_, late));
}

void SnapshotBuilder::AddCounters(Snapshot* snapshot) const {
  const Counters& counters = tables_->counters;
  snapshot->turns = counters.turns;
  snapshot->long_turns = counters.long_turns;
  snapshot->longest_turn_ns = counters.longest_turn_ns;
  snapshot->bytes_h2d = counters.bytes_h2d;
  snapshot->bytes_d2h = counters.bytes_d2h;
  snapshot->parameters_updated = counters.parameters_updated;
  snapshot->sessions_ended_badly = counters.sessions_ended_badly;
}

void SnapshotBuilder::AddJobs(Snapshot* snapshot) {
  for (JobChunks& chunks : jobs_) {
    const Job* const job = tables_->FindJob(chunks.job);
    if (job == nullptr) continue;
    snapshot->jobs.push_back(
        JobRowOf(*job, sources_.demotion.job() == job->id, std::move(chunks.chunks)));

    JobRow& row = snapshot->jobs.back();
    row.lease_ns = options_.times.lease_ns;
    row.kept_until = KeptUntilSeconds(*job, options_, *neighbours_.clock).value_or(0);
    snapshot->rcache_used += row.rcache_bytes;
    for (const SessionRow& session : row.sessions) {
      snapshot->bytes_h2d += session.bytes_h2d;
      snapshot->bytes_d2h += session.bytes_d2h;
    }
  }
}

void SnapshotBuilder::AddGpus(Snapshot* snapshot) const {
  for (const auto& gpu : tables_->gpus) {
    snapshot->gpus.push_back(RowOf(*gpu));
    for (const auto& job : tables_->jobs) {
      for (Rank rank = 0; rank < job->gpus.shares().size(); ++rank)
        snapshot->gpus.back().state_bytes += StateBytesOnGpu(*job, rank, gpu.get());
    }
  }
}

void SnapshotBuilder::AddWaiting(Snapshot* snapshot) const {
  for (const WaitingRank& rank : sources_.waiting)
    snapshot->waiting.push_back(RowOf(rank, neighbours_.clock->NowNs()));
  for (const SetAside& job : tables_->set_aside)
    snapshot->set_aside.push_back({job.states().spec().name, job.uid, job.why.what()});
  for (const Mute& mute : settings_.mutes()) {
    if (const int64_t left = mute.until_ns - neighbours_.clock->NowNs(); left > 0)
      snapshot->mutes.push_back({mute.code, left});
  }
}

std::shared_ptr<const Snapshot> SnapshotBuilder::Build() {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->uptime_ns = neighbours_.clock->NowNs() - tables_->started_ns;
  snapshot->draining = tables_->draining || settings_.closed();
  snapshot->ready = !snapshot->draining;
  AddPool(snapshot.get());
  if (neighbours_.tier != nullptr) AddNvme(snapshot.get());
  snapshot->workers = neighbours_.team->threads();
  snapshot->prefetch = neighbours_.team->tuning().prefetch_elements;

  AddCounters(snapshot.get());
  AddJobs(snapshot.get());
  AddGpus(snapshot.get());
  snapshot->lost = tables_->lost.all();
  AddWaiting(snapshot.get());
  snapshot->config = settings_.config();
  const Ledger ledger = BuildLedger(neighbours_, options_, *tables_, settings_);
  snapshot->accounts = AccountRows(ledger, sources_.waiting);
  return snapshot;
}

}  // namespace tidepool::memserver

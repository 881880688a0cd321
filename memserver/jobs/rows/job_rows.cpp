#include "memserver/jobs/rows/job_rows.h"

#include <algorithm>
#include <utility>

#include "shm/spec/frozen.h"
#include "shm/spec/gpu_states.h"

namespace tidepool::memserver {
namespace {

const char* StateOf(const Job& job) {
  if (job.phase == JobPhase::kRemoving) return "ending";
  if (!job.HasRanks()) return "detached";
  if (!job.HasSlots()) return "awaiting";
  if (!job.IsRecorded() || !job.states->weights_ready()) return "loading";
  return job.updates.active() ? "updating" : "training";
}

uint64_t RcacheOf(const Job& job) {
  uint64_t bytes = 0;
  for (const SessionSlot* slot : job.slots)
    bytes += slot != nullptr && !slot->client_owned_rcache ? slot->rcache_bytes : 0;
  return bytes;
}

SessionRow RowOf(SessionSlot& slot) {
  SessionRow row{.session = slot.session_id,
                 .rank = slot.rank,
                 .pid = slot.pid,
                 .rcache_bytes = slot.rcache_bytes};
  if (slot.session == nullptr) return row;

  row.bytes_h2d = slot.session->bytes_h2d;
  row.bytes_d2h = slot.session->bytes_d2h;
  row.requests = slot.session->requests();
  row.requests_parked = slot.session->requests_parked;
  row.waits = slot.session->waits.sums();
  return row;
}

// The row of a chunk that is not in the table yet, because its job is being made.
ChunkRow RowOfEmpty(const Job& job, ChunkId id) {
  ChunkRow row;
  row.data_group = job.spec().chunks[id].data_group;
  row.elements = job.spec().chunks[id].elements;
  row.dtype = job.spec().DTypeOf(id);
  row.bytes = job.states->plane_bytes(id);
  row.spilled = job.states->placement().IsSpilled(id);
  row.on_gpu = shm::IsOnGpu(job.spec(), id);
  row.weights_spilled = id >= job.states->placement().weights().first;
  return row;
}

ChunkRow RowOf(const Job& job, ChunkId id) {
  if (!job.states->laid_out()) return RowOfEmpty(job, id);
  const Chunk& chunk = job.states->chunk(id);
  ChunkRow row;
  row.state = chunk.state;
  row.data_group = chunk.data_group;
  row.elements = chunk.elements;
  row.dtype = chunk.dtype;
  row.bytes = job.states->plane_bytes(id);

  row.spilled = chunk.spilled;
  row.on_gpu = chunk.on_gpu;
  row.weights_spilled = job.states->window().Covers(id);
  row.in_window = row.weights_spilled && job.states->weights().HoldsWeights(id);

  const Version version = job.IsRecorded() ? chunk.version : kNoVersion;
  row.version = version == kNoVersion ? 0 : version;
  row.ranks_cached = chunk.ranks_cached;
  row.fetches = chunk.fetches;
  row.fetched_step = chunk.fetched == kNoVersion ? 0 : chunk.fetched + 1;
  return row;
}

ChunkRow RowOf(const FrozenUse& use, DType dtype) {
  ChunkRow row;
  row.state = use.chunk->sealed ? ChunkState::kFrozen : ChunkState::kEmpty;
  row.elements = use.chunk->name.bytes / BytesOf(dtype);
  row.dtype = dtype;
  row.bytes = use.chunk->name.bytes;
  row.ranks_cached = use.ranks_cached;
  row.fetches = use.fetches;
  return row;
}

// The gradients that ranks have sent show how far the open step is; fetches do not, since they
// happen in both passes.
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
  step.fetch_wait_ns = job.sealed_traffic.fetch_wait_ns;

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
void MarkUnanswered(SessionSlot& slot, std::vector<ChunkRow>* chunks) {
  const CopyLane& lane = slot.session->lane();
  for (uint32_t i = 0; i < lane.size(); ++i) MarkUnanswered(lane.at(i).request, slot.rank, chunks);
  for (const shm::Request& request : slot.session->waiting().requests())
    MarkUnanswered(request, slot.rank, chunks);
}

// Adds how much memory the job holds, and where.
void AddMemory(const Job& job, JobRow* row) {
  const shm::JobSpec& spec = job.spec();
  row->pool_bytes = job.states->pool_bytes();
  row->nvme_bytes = job.states->nvme_total();
  row->frozen_bytes = shm::FrozenPoolBytes(spec);
  row->rcache_bytes = RcacheOf(job);
  for (Rank rank = 0; rank < job.gpus.shares().size(); ++rank)
    row->gpu_bytes += StateBytesOnGpu(job, rank, nullptr);

  row->chunks_spilled = job.states->chunks_spilled();
  row->chunks_demoted = job.states->demoted();
  row->chunks_on_gpu = spec.states_on_gpu;
  row->weight_slots = job.states->window().slots().size();
  row->weights_filled = job.states->window().fills;
  if (row->weight_slots > 0)
    row->chunks_weights_spilled = spec.chunks.size() - job.states->window().first();
}

}  // namespace

uint64_t StateBytesOnGpu(const Job& job, Rank rank, const GpuStreams* gpu) {
  const GpuShare& share = job.gpus.shares()[rank];
  const bool none = share.life == GpuShare::Life::kNone || share.life == GpuShare::Life::kDropped;
  return none || (gpu != nullptr && share.gpu != gpu) ? 0 : shm::GpuShareBytes(job.spec(), rank);
}

uint64_t ChunksIn(const Job& job) {
  return job.states->spec().chunks.size() + job.states->frozen().size();
}

ChunkRow ChunkRowOf(const Job& job, ChunkId id) {
  const shm::JobSpec& spec = job.spec();
  return spec.IsFrozen(id) ? RowOf(job.states->frozen(id), spec.DTypeOf(id)) : RowOf(job, id);
}

JobRow JobRowOf(const Job& job, bool demoting, std::vector<ChunkRow> chunks) {
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
  AddMemory(job, &row);

  row.account = job.account;
  row.quota = job.quota;
  row.suspended = job.suspended;
  row.optimizer_bytes = job.worker_share.served;

  row.step_seconds = job.figures.last_seconds();
  row.step_times = job.figures.Times();
  row.step_facts = job.figures.facts();
  row.tokens = job.figures.tokens();
  row.steps_skipped = job.figures.skipped();
  row.step = ProgressOf(job);
  row.spans = job.spans;
  if (job.IsRecorded()) {
    row.version = job.states->sealed_version();
    row.grad_norm = job.states->last_step().grad_norm;
  }

  row.chunks = std::move(chunks);
  for (SessionSlot* slot : job.slots) {
    if (slot == nullptr) continue;
    row.sessions.push_back(RowOf(*slot));
    if (slot->session != nullptr) MarkUnanswered(*slot, &row.chunks);
  }
  return row;
}

}  // namespace tidepool::memserver

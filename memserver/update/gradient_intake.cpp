#include "memserver/update/gradient_intake.h"

#include <algorithm>

#include "base/check.h"
#include "base/point.h"

namespace tidepool::memserver {
namespace {

// At most one widen or add a rank (its staging buffer) and one scan a chunk are due at a time.
uint32_t TasksMax(const shm::JobSpec& spec) {
  return spec.world + static_cast<uint32_t>(spec.chunks.size());
}

}  // namespace

GradientIntake::GradientIntake(JobStates* states, JobId job)
    : states_(states),
      job_(job),
      chunk_count_(static_cast<uint32_t>(states->chunks().size())),
      shards_of_rank_(states->spec().world, 0),
      shards_complete_(states->spec().world, 0),
      staging_busy_(states->spec().world, false),
      tasks_(TasksMax(states->spec())) {
  for (const Chunk& chunk : states->chunks()) {
    for (Rank rank = 0; rank < states->spec().world; ++rank) shards_of_rank_[rank] += (chunk.rank_mask >> rank & 1) != 0 ? 1 : 0;
  }
}

void GradientIntake::Accept(Rank rank, const shm::Request& request) {
  ShardIntake& intake = states_->intake(request.chunk, rank);
  ++intake.micro_batches_accepted;
  if (intake.micro_batches_accepted == states_->spec().micro_batches) ++shards_complete_[rank];
}

bool GradientIntake::GoesStraight(const shm::Request& request) const {
  return request.micro_batch == 0 && states_->gradient_type() == states_->spec().dtype;
}

Start GradientIntake::StartGradient(Session* session, const shm::Request& request) {
  Chunk& chunk = states_->chunk(request.chunk);
  const Rank rank = session->rank();
  // The slot is the redo log of the running update until the chunk has the version that the gradient was computed from.
  if (chunk.version() != request.version || stale_at_workers_ > 0) return Start::kWait;
  const bool straight = GoesStraight(request);
  if (!straight && staging_busy_[rank]) return Start::kWait;
  if (!straight) staging_busy_[rank] = true;
  if (chunk.state == ChunkState::kResident) chunk.state = ChunkState::kGradients;
  const Copy copy{request, request.element_count * BytesOf(states_->spec().dtype), attempt_, !straight};
  void* to = straight ? states_->GradientBytes(chunk, request.element_begin) : states_->staging(rank);
  session->lane().Start(copy, to, session->rcache() + request.rcache_offset);
  NoteRcacheContent(states_, session, request, false);
  TP_POINT("server.gradient_started");
  return Start::kStarted;
}

bool GradientIntake::EndGradient(Session* session, const Copy& copy) {
  session->bytes_d2h += copy.bytes;
  if (copy.attempt != attempt_) return false;
  TP_POINT("server.gradient_copied");
  const ChunkId chunk = copy.request.chunk;
  if (!copy.to_staging) {
    EndShard(chunk, session->rank());
    return true;
  }
  tasks_.Push({copy.request.micro_batch == 0 ? WorkKind::kWiden : WorkKind::kAccumulate, chunk, session->rank()});
  return true;
}

// One more micro-batch of a shard lies in its slot.
void GradientIntake::EndShard(ChunkId id, Rank rank) {
  ShardIntake& intake = states_->intake(id, rank);
  ++intake.micro_batches_stored;
  TP_POINT("server.gradient_stored");
  if (intake.micro_batches_stored < states_->spec().micro_batches) return;
  Chunk& chunk = states_->chunk(id);
  if (++chunk.shards_stored == chunk.shards) tasks_.Push({WorkKind::kScan, id, 0});
}

void GradientIntake::FillShardWork(const Task& task, Work* work) const {
  const Chunk& chunk = states_->chunk(task.chunk);
  work->to = states_->GradientBytes(chunk, states_->ShardBegin(task.chunk, task.rank));
  work->from = states_->staging(task.rank);
  work->count = chunk.shard_elements;
  work->dtype = states_->spec().dtype;
}

bool GradientIntake::NextWork(Work* work) {
  if (tasks_.empty()) return false;
  const Task task = tasks_.Front();
  tasks_.Pop();
  *work = Work{};
  work->name = {task.kind, job_, attempt_, task.chunk, task.rank};
  if (task.kind == WorkKind::kScan) {
    const Chunk& chunk = states_->chunk(task.chunk);
    work->from = chunk.planes.gradient;
    work->dtype = states_->gradient_type();
    work->runs = states_->runs(chunk);
    work->norm_sums = states_->norm_sums().data() + chunk.first_parameter;
  } else {
    FillShardWork(task, work);
  }
  ++at_workers_;
  return true;
}

void GradientIntake::EndWork(const WorkDone& done) {
  ++changes_;
  if (done.name.attempt != attempt_) {
    TP_CHECK(stale_at_workers_ > 0, "dropped work was counted");
    --stale_at_workers_;
    return;
  }
  TP_CHECK(at_workers_ > 0, "work at the workers was counted");
  --at_workers_;
  if (done.name.kind == WorkKind::kScan) {
    states_->chunk(done.name.chunk).state = ChunkState::kComplete;
    all_finite_ = all_finite_ && done.finite;
    ++chunks_scanned_;
    TP_POINT("server.chunk_scanned");
    return;
  }
  staging_busy_[done.name.index] = false;
  EndShard(done.name.chunk, done.name.index);
}

void GradientIntake::ResetCounts() {
  states_->ForgetOpenStep();
  std::fill(shards_complete_.begin(), shards_complete_.end(), 0);
  chunks_scanned_ = 0;
  all_finite_ = true;
  ++changes_;
}

void GradientIntake::BeginStep() {
  TP_CHECK(at_workers_ == 0 && tasks_.empty(), "a sealed step has no work left");
  ResetCounts();
}

void GradientIntake::Drop() {
  ResetCounts();
  tasks_.Clear();
  std::fill(staging_busy_.begin(), staging_busy_.end(), false);
  stale_at_workers_ += at_workers_;
  at_workers_ = 0;
  ++attempt_;
}

}  // namespace tidepool::memserver

#include "memserver/update/gradient_intake.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/hot.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/traffic/rcache_content.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::memserver {
namespace {

// At most one widen or add is due per rank (its staging buffer), and one scan per chunk.
uint32_t TasksMax(const shm::JobSpec& spec) {
  return spec.world + static_cast<uint32_t>(spec.chunks.size());
}

WorkKind StagedKindOf(uint32_t micro_batch) {
  return micro_batch == 0 ? WorkKind::kWiden : WorkKind::kAccumulate;
}

}  // namespace

GradientIntake::GradientIntake(JobStates* states, JobId job, const HostPool* pool)
    : states_(states),
      job_(job),
      pool_(pool),
      chunk_count_(static_cast<uint32_t>(states->spec().chunks.size())),
      shards_of_rank_(shm::ChunksOfRanks(states->spec())),
      shards_complete_(states->spec().world, 0),
      staging_busy_(states->spec().world, false),
      tasks_(TasksMax(states->spec())) {}

void GradientIntake::Accept(Rank rank, const shm::Request& request) {
  states_->intake(request.chunk, rank).micro_batches_accepted +=
      shm::IsSummed(request) ? states_->spec().micro_batches : 1;
  NoteAccepted(request.chunk, rank);
}

// Notes that the shard has one more micro-batch, or the number it had when the former server ended.
void GradientIntake::NoteAccepted(ChunkId id, Rank rank) {
  const uint32_t accepted = states_->intake(id, rank).micro_batches_accepted;
  if (accepted == states_->spec().micro_batches) ++shards_complete_[rank];
  if (accepted > reach_.micro_batches) reach_ = {accepted, 0, 0};
  if (accepted < reach_.micro_batches) return;
  ++reach_.shards;
  Chunk& chunk = states_->chunk(id);
  if (chunk.accepted != accepted) chunk.shards_accepted = 0;
  chunk.accepted = accepted;
  if (++chunk.shards_accepted == chunk.shards) ++reach_.chunks;
}

GradientIntake::Reach GradientIntake::reach() const {
  return reach_.micro_batches > 0 ? reach_ : Reach{0, states_->shards(), chunk_count_};
}

bool GradientIntake::GoesStraight(const shm::Request& request) const {
  return shm::IsSummed(request) || (request.micro_batch == 0 && LandsAsItIs(request.chunk));
}

bool GradientIntake::LandsAsItIs(ChunkId id) const {
  return states_->chunk(id).gradient_type == states_->spec().GradientTypeOf(id);
}

Start GradientIntake::StartGradient(Session* session, const shm::Request& request) {
  Chunk& chunk = states_->chunk(request.chunk);
  const Rank rank = session->rank();
  // The slot is the redo log of the running update until the chunk has the version that the
  // gradient was computed from.
  if (chunk.version != request.version || stale_at_workers_ > 0) return Start::kWait;
  const bool straight = GoesStraight(request);
  if (!straight && staging_busy_[rank]) return Start::kWait;
  if (!straight && !TP_PLANTED("update.staging_released_early")) staging_busy_[rank] = true;
  if (chunk.state == ChunkState::kResident) chunk.state = ChunkState::kGradients;

  const uint64_t bytes =
      request.element_count *
      BytesOf(shm::SubmittedType(states_->spec(), request.chunk, shm::IsSummed(request)));
  const Copy copy{request, bytes, attempt_, !straight};
  void* to = straight ? states_->table().GradientBytes(chunk, request.element_begin)
                      : states_->staging(rank);
  if (shm::IsZeros(request)) {
    session->lane().StartZero(copy, to);
  } else {
    session->lane().Start(copy, to, session->rcache() + request.rcache_offset);
    NoteRcacheContent(states_, session, request, false);
  }

  if (straight && TP_PLANTED("update.gradient_word_before_copy"))
    states_->intake(request.chunk, rank)
        .record->gradients.store(GradientWord(states_->open_step(), 1));
  TP_POINT("server.gradient_started");
  return Start::kStarted;
}

bool GradientIntake::EndGradient(Session* session, const Copy& copy) {
  session->bytes_d2h += shm::IsZeros(copy.request) ? 0 : copy.bytes;
  if (copy.attempt != attempt_) return false;
  TP_POINT("server.gradient_copied");

  const ChunkId chunk = copy.request.chunk;
  if (!copy.to_staging) {
    EndShard(chunk, session->rank(), shm::IsSummed(copy.request));
    return true;
  }
  KeepStaged(copy, session->rank());
  tasks_.Push({StagedKindOf(copy.request.micro_batch), chunk, session->rank()});
  return true;
}

// From here on the trainer may drop the gradient: kept memory says what is to be done with it.
void GradientIntake::KeepStaged(const Copy& copy, Rank rank) {
  StagingRecord& staged = states_->records().staging_record(rank);
  const uint64_t sequence = staged.last_sequence.load(std::memory_order_relaxed) + 1;
  staged.pending.store(0, std::memory_order_release);
  staged.last_sequence.store(sequence, std::memory_order_release);
  // An addition that a dead server had begun may have been dropped before it was resumed; its slot
  // is no longer valid.
  reinterpret_cast<optim::ProgressWord*>(staged.progress)
      ->Store({sequence - 1, 0, optim::Progress::State::kFinished});
  staged.open_step = states_->open_step();
  staged.chunk = copy.request.chunk;
  staged.micro_batch = copy.request.micro_batch;
  staged.pending.store(sequence, std::memory_order_release);
  TP_POINT("server.gradient_staged");
}

Status GradientIntake::Recover(std::span<const optim::UndoArea> areas) {
  // The former server may have ended between the seal and the opening of the next step.
  if (states_->open_step() < OpenStepWord(states_->sealed_version(), 0) &&
      !TP_PLANTED("recover.step_not_opened"))
    states_->records().OpenNextStep();
  if (VersionOfOpenStep(states_->open_step()) != states_->sealed_version()) {
    return Status(ErrorId::kKeptMemoryBad, "the open step is not the one after the sealed one");
  }

  for (ChunkId id = 0; id < chunk_count_; ++id) {
    for (Rank rank = 0; rank < states_->spec().world; ++rank) {
      if (!states_->spec().IsMember(id, rank)) continue;
      ShardIntake& intake = states_->intake(id, rank);
      intake.put_elements = intake.record->put_elements.load(std::memory_order_acquire);
      const uint32_t stored = MicroBatchesOf(
          intake.record->gradients.load(std::memory_order_acquire), states_->open_step());
      // A gradient comes only after the chunk has the version that it was computed from.
      const bool early = stored > 0 && states_->chunk(id).version != states_->sealed_version();
      if (intake.put_elements > states_->chunk(id).shard_elements ||
          stored > states_->spec().micro_batches || early) {
        return BadShard(id, rank, "has more in it than there can be");
      }

      if (states_->chunk(id).version != kNoVersion &&
          intake.put_elements < states_->chunk(id).shard_elements) {
        return BadShard(id, rank, "has not all the weights of its version");
      }
      intake.micro_batches_accepted = intake.micro_batches_stored = stored;

      if (stored == 0) continue;
      Chunk& chunk = states_->chunk(id);
      if (chunk.state == ChunkState::kResident) chunk.state = ChunkState::kGradients;
      NoteAccepted(id, rank);
      CountStored(id, rank);
    }
  }

  if (states_->spec().micro_batches == 1 || TP_PLANTED("recover.staged_gradient_forgotten"))
    return Status();
  for (Rank rank = 0; rank < states_->spec().world; ++rank)
    TP_RETURN_IF_ERROR(RecoverStaged(rank, areas));
  return Status();
}

Status GradientIntake::BadShard(ChunkId id, Rank rank, const char* why) const {
  return Status(ErrorId::kKeptMemoryBad, "the shard of rank " + std::to_string(rank) +
                                             " in chunk " + std::to_string(id) + " " + why);
}

// True if a server can have written a rank's staging record: sequence numbers fit a progress word,
// and the word belongs to the pending addition or to an earlier one.
bool GradientIntake::IsPossible(const StagingRecord& staged, const optim::AddPiece* pending) const {
  constexpr uint64_t kSequencesMax = kVersionLimit / 2;
  const uint64_t last = staged.last_sequence.load(std::memory_order_relaxed);
  const optim::Progress at = reinterpret_cast<const optim::ProgressWord*>(staged.progress)->Load();
  if (last > kSequencesMax || staged.pending.load(std::memory_order_relaxed) > last ||
      at.version > last)
    return false;
  if (pending == nullptr) return true;
  if (at.version == pending->sequence) return at.begin <= pending->count;
  return at.version < pending->sequence &&
         (at.state == optim::Progress::State::kFinished || at == optim::Progress{});
}

// Resumes the addition of a gradient that the former server had accepted, but perhaps not added.
Status GradientIntake::RecoverStaged(Rank rank, std::span<const optim::UndoArea> areas) {
  StagingRecord& staged = states_->records().staging_record(rank);
  const uint64_t sequence = staged.pending.load(std::memory_order_acquire);
  auto* progress = reinterpret_cast<optim::ProgressWord*>(staged.progress);
  const bool named = sequence != 0 && staged.open_step == states_->open_step() &&
                     staged.chunk < chunk_count_ && states_->spec().IsMember(staged.chunk, rank);
  const ShardIntake* intake = named ? &states_->intake(staged.chunk, rank) : nullptr;
  if (!IsPossible(staged, nullptr))
    return BadShard(staged.chunk, rank, "has impossible numbers of additions");
  if (!named || staged.micro_batch != intake->micro_batches_stored) {
    // Its attempt no longer counts, or it was stored already: nobody reads that slot before it is
    // overwritten.
    progress->Store({staged.last_sequence.load(std::memory_order_relaxed), 0,
                     optim::Progress::State::kFinished});
    staged.pending.store(0, std::memory_order_release);
    return Status();
  }

  const optim::AddPiece piece = AddPieceOf(rank, staged.chunk, sequence);
  const bool straight = staged.micro_batch == 0 && LandsAsItIs(staged.chunk);
  const bool due = staged.micro_batch < states_->spec().micro_batches &&
                   states_->chunk(staged.chunk).version == states_->sealed_version();
  if (straight || !due || !IsPossible(staged, &piece))
    return BadShard(staged.chunk, rank, "has an addition that cannot be pending");
  if (staged.micro_batch > 0 &&
      optim::RestoreOpenTile(piece, areas) == optim::RestoreOutcome::kUndoLost) {
    return BadShard(staged.chunk, rank, "was being added to, and its undo area is gone");
  }

  staging_busy_[rank] = true;
  ++states_->intake(staged.chunk, rank).micro_batches_accepted;
  NoteAccepted(staged.chunk, rank);
  tasks_.Push({StagedKindOf(staged.micro_batch), staged.chunk, rank});
  return Status();
}

// Counts one more micro-batch of a shard that is stored in its slot, or all of them.
void GradientIntake::EndShard(ChunkId id, Rank rank, bool summed) {
  states_->table().AddStored(id, rank, summed ? states_->spec().micro_batches : 1);
  TP_POINT("server.gradient_stored");
  CountStored(id, rank);
}

void GradientIntake::CountStored(ChunkId id, Rank rank) {
  const ShardIntake& intake = states_->intake(id, rank);
  if (intake.micro_batches_stored < states_->spec().micro_batches) return;
  Chunk& chunk = states_->chunk(id);
  if (++chunk.shards_stored == chunk.shards) tasks_.Push({WorkKind::kScan, id, 0});
}

void GradientIntake::FillShardWork(const Task& task, Work* work) const {
  const Chunk& chunk = states_->chunk(task.chunk);
  work->to = states_->table().GradientBytes(chunk, states_->ShardBegin(task.chunk, task.rank));
  work->from = states_->staging(task.rank);
  work->count = chunk.shard_elements;
  work->dtype = chunk.dtype;
  if (task.kind != WorkKind::kAccumulate) return;

  const optim::AddPiece piece =
      AddPieceOf(task.rank, task.chunk, states_->records().staging_record(task.rank).pending);
  work->identity = piece.identity;
  work->version = piece.sequence;
  work->progress = piece.progress;
}

optim::AddPiece GradientIntake::AddPieceOf(Rank rank, ChunkId id, uint64_t sequence) const {
  StagingRecord& staged = states_->records().staging_record(rank);
  optim::AddPiece piece{};

  piece.identity = PieceIdentity(*states_, *pool_, staged.progress);
  piece.sequence = sequence;
  piece.sum = reinterpret_cast<float*>(
      states_->table().GradientBytes(states_->chunk(id), states_->ShardBegin(id, rank)));
  piece.addend = states_->staging(rank);
  piece.dtype = states_->chunk(id).dtype;
  piece.count = states_->chunk(id).shard_elements;
  piece.progress = reinterpret_cast<optim::ProgressWord*>(staged.progress);
  return piece;
}

TP_HOT bool GradientIntake::NextWork(Work* work) {
  if (tasks_.empty()) return false;
  const Task task = tasks_.Front();
  tasks_.Pop();

  *work = Work{};
  work->name = {task.kind, job_, attempt_, task.chunk, task.rank};
  if (task.kind == WorkKind::kScan) {
    const Chunk& chunk = states_->chunk(task.chunk);
    work->from = chunk.planes.gradient;
    work->dtype = chunk.gradient_type;
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
  states_->records().staging_record(done.name.index).pending.store(0, std::memory_order_release);
  TP_POINT("server.staging_free");
}

void GradientIntake::ResetCounts() {
  states_->table().ForgetOpenStep();
  std::fill(shards_complete_.begin(), shards_complete_.end(), 0);
  chunks_scanned_ = 0;
  reach_ = {};
  all_finite_ = true;
  ++changes_;
}

void GradientIntake::BeginStep() {
  TP_CHECK(at_workers_ == 0 && tasks_.empty(), "a sealed step has no work left");
  states_->records().OpenNextStep();
  ResetCounts();
}

void GradientIntake::Drop() {
  if (!TP_PLANTED("update.attempt_not_advanced")) states_->records().NextAttempt();
  ResetCounts();
  tasks_.Clear();
  std::fill(staging_busy_.begin(), staging_busy_.end(), false);
  stale_at_workers_ += at_workers_;
  at_workers_ = 0;
  ++attempt_;
}

}  // namespace tidepool::memserver

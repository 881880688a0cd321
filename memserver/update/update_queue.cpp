#include "memserver/update/update_queue.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/hot.h"
#include "base/planted.h"
#include "base/point.h"
#include "optim/update_rule.h"

namespace tidepool::memserver {

UpdateQueue::UpdateQueue(JobStates* states, JobId job, HostPool* pool, SpillQueue* spills,
                         GpuQueue* gpus)
    : states_(states),
      job_(job),
      pool_(pool),
      spills_(spills),
      gpus_(gpus),
      // Until a rank declares a schedule, chunks are updated in the order of their ids.
      next_order_(states->spec().chunks.size()) {}

void UpdateQueue::SetOrder(std::shared_ptr<const std::vector<ChunkId>> order) {
  TP_CHECK(order->size() == next_order_.size(), "an order names each chunk of the job once");
  GiveBackAhead();
  next_order_ = ChunkOrder(std::move(order));
}

bool UpdateQueue::ReadAhead() {
  bool begun = false;
  // Most chunks of a large job may lie on the host, so the search continues in the next turn.
  const uint64_t end =
      std::min<uint64_t>(next_order_.size(), ahead_chunk_ + uint64_t{kHandedOutPerTurn});
  while (states_->spills() && ahead_chunk_ < end) {
    const ChunkId id = next_order_[ahead_chunk_];
    const Chunk& chunk = states_->chunk(id);
    if (!chunk.spilled || ahead_piece_ == chunk.pieces) {
      ++ahead_chunk_;
      ahead_piece_ = 0;
      continue;
    }

    if (!spills_->ReadAhead(id, ahead_piece_, states_->epoch())) break;
    ++ahead_piece_;
    begun = true;
  }
  return begun || (ahead_chunk_ == end && end < next_order_.size());
}

bool UpdateQueue::GiveBackAhead() {
  ahead_chunk_ = ahead_piece_ = 0;
  return states_->spills() && spills_->GiveBackAhead();
}

void UpdateQueue::Begin(const StepRecord& record) {
  TP_CHECK(!active(), "one step is updated at a time");
  order_ = next_order_;
  Prepare(record);
  GiveBackAhead();
}

Status UpdateQueue::Resume(const StepRecord& record, std::span<const optim::UndoArea> areas) {
  std::vector<ChunkId> left;
  for (size_t i = 0; i < next_order_.size(); ++i) {
    const ChunkId id = next_order_[i];
    if (states_->chunk(id).state == ChunkState::kUpdateDue) left.push_back(id);
  }
  order_ = ChunkOrder(std::make_shared<const std::vector<ChunkId>>(std::move(left)));

  Prepare(record);
  for (ChunkId id = 0; id < states_->chunks().size(); ++id) {
    const bool due = states_->chunk(id).state == ChunkState::kUpdateDue && !skipped_;
    TP_RETURN_IF_ERROR(due ? RestoreChunk(id, areas) : CheckAtRest(id));
  }
  return Status();
}

Status UpdateQueue::CloseTiles(const StepRecord& record, std::span<const optim::UndoArea> areas) {
  version_ = record.version;
  if (record.skipped != 0) return Status();
  for (ChunkId id = 0; id < states_->chunks().size(); ++id) {
    const Chunk& chunk = states_->chunk(id);
    if (chunk.state == ChunkState::kUpdateDue && !chunk.states_off_host())
      TP_RETURN_IF_ERROR(RestoreChunk(id, areas));
  }
  return Status();
}

Status UpdateQueue::BadPiece(ChunkId id, uint32_t piece, const char* why) const {
  return Status(ErrorId::kKeptMemoryBad, "piece " + std::to_string(piece) + " of chunk " +
                                             std::to_string(id) + " of a job at version " +
                                             std::to_string(version_) + " " + why);
}

// Checks that no update of the chunk is in progress: every piece is as the last update, or the
// start of the job, left it.
Status UpdateQueue::CheckAtRest(ChunkId id) const {
  for (uint32_t piece = 0; piece < states_->chunk(id).pieces; ++piece) {
    Work work;
    FillWork(id, piece, &work);
    const optim::Progress at = work.progress->Load();
    const bool finished = at.state == optim::Progress::State::kFinished && at.version <= version_;
    if (!finished && at != optim::Progress{})
      return BadPiece(id, piece, "has an impossible progress word");
  }
  return Status();
}

Status UpdateQueue::RestoreChunk(ChunkId id, std::span<const optim::UndoArea> areas) const {
  for (uint32_t piece = 0; piece < states_->chunk(id).pieces; ++piece) {
    Work work;
    FillWork(id, piece, &work);
    const optim::Progress at = work.progress->Load();
    const bool begun = at.version == version_;
    const bool possible =
        begun ? at.begin <= work.planes.count
              : at.version < version_ &&
                    (at.state == optim::Progress::State::kFinished || at == optim::Progress{});
    if (!possible) return BadPiece(id, piece, "has an impossible progress word");
    // For a chunk on a GPU the word only says that its weights were stored: its update begins
    // again, too.
    if (states_->chunk(id).on_gpu) continue;
    // For a spilled chunk the word counts work in the dead server's staging memory: the update
    // begins again from the former epoch's slot.
    if (states_->chunk(id).spilled) {
      work.progress->Store({version_ - 1, 0, optim::Progress::State::kFinished});
      continue;
    }
    if (optim::RestoreOpenTile(
            optim::Piece{work.identity, version_, work.planes, {}, work.progress}, areas) ==
        optim::RestoreOutcome::kUndoLost) {
      return BadPiece(id, piece, "has an open tile, and its undo area is gone");
    }
  }
  return Status();
}

void UpdateQueue::Prepare(const StepRecord& record) {
  factors_.Make(states_->spec(), record, states_->records().slots().Of(record.version));
  version_ = record.version;
  epoch_ = record.optimizer_step - 1;
  skipped_ = record.skipped != 0;
  cursor_ = piece_ = handed_out_ = 0;
  chunks_left_ = static_cast<uint32_t>(order_.size());
  HandOut();
}

TP_HOT bool UpdateQueue::HandOut() {
  const auto all = static_cast<uint32_t>(order_.size());
  if (handed_out_ == all) return false;
  const bool some_off_host = !skipped_ && (states_->spills() || states_->uses_gpus());
  const bool whole = !some_off_host || TP_PLANTED("update.handed_out_at_once");
  const uint32_t end = whole ? all : std::min(all, handed_out_ + kHandedOutPerTurn);

  const uint32_t before = handed_out_;
  for (; handed_out_ < end && some_off_host; ++handed_out_) {
    const ChunkId id = order_[handed_out_];
    const Chunk& chunk = states_->chunk(id);
    // A closed chunk holds up all later ones too, to keep the order.
    if (chunk.states_off_host() && !IsOpen(id)) return handed_out_ > before;
    if (chunk.spilled) spills_->Update(id, epoch_);
    if (chunk.on_gpu) gpus_->Update(id, epoch_);
  }
  handed_out_ = end;
  return true;
}

std::vector<ChunkId> UpdateQueue::NextOrder() const {
  std::vector<ChunkId> order;
  for (size_t i = 0; i < next_order_.size(); ++i) order.push_back(next_order_[i]);
  return order;
}

bool UpdateQueue::IsOpen(ChunkId id) const {
  if (TP_PLANTED("update.not_copied_yet")) return true;
  return std::all_of(gates_.begin(), gates_.end(),
                     [id](const auto& gate) { return gate.second(id); });
}

void UpdateQueue::BeginChunk(Chunk* chunk) {
  chunk->state = ChunkState::kUpdating;
  ++chunks_updating_;
  TP_POINT("server.update_started");
}

bool UpdateQueue::NextSpilledWork(Work* work) {
  SpillQueue::ReadyPiece ready;
  if (!states_->spills() || !spills_->NextUpdate(holds_ == 0, &ready)) return false;
  Chunk& chunk = states_->chunk(ready.chunk);
  if (chunk.state != ChunkState::kUpdating) {
    states_->weights().HoldForUpdate(ready.chunk);
    BeginChunk(&chunk);
  }

  FillWork(ready.chunk, ready.piece, work);
  work->staged = ready.staged;
  work->copy =
      static_cast<std::byte*>(chunk.is_split() ? work->planes.param16 : work->planes.master);
  PointIntoStaging(states_->spec(), ready.chunk, ready.staged.payload, &work->planes);
  return true;
}

TP_HOT bool UpdateQueue::NextWork(Work* work) {
  if (skipped_ || !active()) return false;
  // Spilled pieces come first, so that staging is freed.
  if (NextSpilledWork(work)) return true;
  while (cursor_ < handed_out_ && states_->chunk(order_[cursor_]).states_off_host()) ++cursor_;
  if (cursor_ >= handed_out_) return false;
  const ChunkId id = order_[cursor_];
  Chunk& chunk = states_->chunk(id);
  if (piece_ == 0) {
    if (holds_ > 0 || !IsOpen(id) ||
        (chunk.readers > 0 && !TP_PLANTED("update.chunk_read_meanwhile")))
      return false;
    chunk.pieces_left = chunk.pieces;
    BeginChunk(&chunk);
  }

  FillWork(id, piece_, work);
  if (++piece_ == chunk.pieces) {
    ++cursor_;
    piece_ = 0;
  }
  return true;
}

void UpdateQueue::FillWork(ChunkId id, uint32_t piece, Work* work) const {
  const Chunk& chunk = states_->chunk(id);
  *work = Work{};
  work->name = {WorkKind::kUpdate, job_, 0, id, piece};
  work->runs = states_->runs(chunk);
  work->begin = piece * shm::kPieceElements;
  work->planes = HostPlanesOf(chunk, piece);
  work->factors = factors_.OfChunk(chunk.first_parameter);
  work->progress = ProgressOf(chunk, piece);
  work->identity = PieceIdentity(*states_, *pool_, work->progress);
  work->version = version_;
}

void UpdateQueue::PublishNext(ChunkId id) {
  states_->table().Publish(&states_->chunk(id), version_);
  --chunks_left_;
  TP_POINT("server.chunk_published");
}

uint64_t UpdateQueue::BeginOnGpu() {
  const GpuQueue::Begun begun = gpus_->BeginNext(holds_ == 0, factors_);
  if (begun.update) BeginChunk(&states_->chunk(*begun.update));
  return begun.bytes;
}

void UpdateQueue::EndAway(ChunkId id) {
  --chunks_updating_;
  PublishNext(id);
}

bool UpdateQueue::EndWork(const WorkDone& done) {
  Chunk& chunk = states_->chunk(done.name.chunk);
  if (chunk.spilled) {
    spills_->EndWork(done);
    return false;
  }

  TP_CHECK(chunk.state == ChunkState::kUpdating && chunk.pieces_left > 0, "a piece ends once");
  if (--chunk.pieces_left > (TP_PLANTED("update.published_before_last_piece") ? 1u : 0u))
    return false;
  --chunks_updating_;
  PublishNext(done.name.chunk);
  return true;
}

TP_HOT uint32_t UpdateQueue::PublishSkipped(uint32_t chunks_max) {
  if (!skipped_ || holds_ > 0) return 0;
  uint32_t published = 0;
  for (; published < chunks_max && active(); ++published) PublishNext(order_[cursor_++]);
  return published;
}

}  // namespace tidepool::memserver

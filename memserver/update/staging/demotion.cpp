#include "memserver/update/staging/demotion.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/update/staging/piece_place.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

void Demotion::Begin(Order order, const JobStates& states, int64_t now_ns) {
  TP_CHECK(!active() && order.plan.directories.size() == states.chunks_on_host(),
           "one job moves at a time, whole");
  order_ = std::move(order);
  why_ = Status();
  state_ = State::kMoving;
  next_chunk_ = next_piece_ = 0;
  written_ = 0;
  began_ns_ = now_ns;

  pieces_ = states.table().pieces_kept();
  places_.clear();
  places_.reserve(order_.plan.directories.size());
  ends_ = order_.offsets;
  PlaceNext(states);
}

void Demotion::PlaceNext(const JobStates& states) {
  uint64_t& end = ends_[order_.plan.directories[next_chunk_]];
  places_.push_back(end);
  end += shm::SpilledChunkBytes(states.spec(), next_chunk_);
}

PieceBuffer Demotion::BufferOf(uint32_t staging, const StateTier& tier,
                               const JobStates& states) const {
  const StagedPiece& piece = staged_.at(staging);
  PieceBuffer buffer = tier.PieceIn(staging, PayloadOfPiece(states, piece.chunk, piece.piece));
  const uint64_t epoch = states.epoch();

  buffer.becomes = {.store = tier.store_nonce(piece.directory),
                    .job = states.record().nonce,
                    .chunk = piece.chunk,
                    .piece = piece.piece,
                    .epoch = epoch,
                    .place = places_[piece.chunk] +
                             epoch % 2 * shm::SlotBytes(states.spec(), piece.chunk) +
                             shm::PieceOffset(states.spec(), piece.chunk, piece.piece)};
  return buffer;
}

bool Demotion::TakePieces(StateTier* tier, const JobStates& states) {
  if (staged_.count() == 0)
    staged_ = OwnedPieces(&tier->staging(), PieceOwner::kDemotion, order_.job);
  bool taken = false;

  const size_t chunks = order_.plan.directories.size();
  while (staged_.count() < kStagedPiecesMax && next_chunk_ < chunks) {
    const uint32_t directory = order_.plan.directories[next_chunk_];
    if (!staged_.Take(directory, next_chunk_, next_piece_)) break;
    taken = true;
    if (++next_piece_ < states.chunk(next_chunk_).pieces) continue;
    next_piece_ = 0;
    if (++next_chunk_ < chunks) PlaceNext(states);
  }
  return taken;
}

bool Demotion::Progress(StateTier* tier, const JobStates& states) {
  bool worked = state_ == State::kMoving && TakePieces(tier, states);
  if (state_ == State::kMoving &&
      (written_ == pieces_ || TP_PLANTED("update.demotion_committed_early"))) {
    TP_POINT("server.demotion_written");
    tier->Commit(DemotedKey(states.record().nonce), states.epoch());
    state_ = State::kFlushing;
    worked = true;
  }

  if (state_ != State::kFlushing) return worked;
  if (const TierDirectory* poisoned = tier->PoisonedOf(order_.plan.nvme_bytes)) {
    Cancel(Status(ErrorId::kNvmeIoFailed, "a flush of the NVMe directory failed")
               .Where(poisoned->path));
    return true;
  }
  if (!tier->IsDurable(order_.plan.nvme_bytes)) return worked;
  state_ = State::kReady;
  return true;
}

bool Demotion::NextWork(const StateTier& tier, JobStates* states, Work* work) {
  if (state_ != State::kMoving) return false;
  const uint32_t staging = staged_.FindIn(StagedState::kReady);
  if (staging == StagingTable::kNone) return false;
  StagedPiece& piece = staged_.at(staging);
  piece.state = StagedState::kAtWorker;
  Chunk& chunk = states->chunk(piece.chunk);
  ++chunk.readers;

  *work = Work{};
  work->name = {WorkKind::kMoveOut, order_.job, 0, piece.chunk, piece.piece};
  work->source = HostPlanesOf(chunk, piece.piece);
  work->staged = BufferOf(staging, tier, *states);
  work->planes.count = work->source.count;
  PointIntoStaging(states->spec(), piece.chunk, work->staged.payload, &work->planes);
  return true;
}

void Demotion::EndWork(const WorkDone& done, StateTier* tier, JobStates* states) {
  const uint32_t staging = staged_.FindAtWorker(done.name.chunk, done.name.index);
  --states->chunk(done.name.chunk).readers;
  if (state_ != State::kMoving) return staged_.Free(staging);
  TP_POINT("server.demotion_staged");
  const PieceBuffer buffer = BufferOf(staging, *tier, *states);
  tier->Start(staging, {.kind = nvme::IoKind::kWrite,
                        .offset = buffer.becomes.place,
                        .payload_bytes = buffer.payload.size(),
                        .range = DemotedKey(states->record().nonce)});
}

void Demotion::EndTransfer(const TierDone& done, StateTier* tier) {
  const StagedPiece piece = staged_.at(done.staging);
  TP_CHECK(piece.state == StagedState::kWriting, "a transfer of a piece that moves ends once");
  staged_.Free(done.staging);
  if (done.error == 0 || TP_PLANTED("update.demotion_error_ignored")) {
    ++written_;
    return;
  }

  Cancel(Status(ErrorId::kNvmeIoFailed,
                "piece " + std::to_string(piece.piece) + " of chunk " +
                    std::to_string(piece.chunk) + " cannot be written at offset " +
                    std::to_string(done.offset) + ": " + std::strerror(done.error))
             .Where(tier->directory(done.directory).path));
}

void Demotion::TakeLate(const TierLate& late, StateTier* tier) {
  Cancel(Status(ErrorId::kNvmeStalled,
                "the drive does not answer: piece " + std::to_string(late.piece.piece) +
                    " of chunk " + std::to_string(late.piece.chunk) +
                    " cannot be written at offset " + std::to_string(late.offset))
             .Where(tier->directory(late.directory).path));
  if (late.lost) staged_.Free(late.staging);
}

void Demotion::Cancel(const Status& why) {
  if (!active() || state_ == State::kEnding || state_ == State::kCommitted) return;
  why_ = why;
  state_ = State::kEnding;
  staged_.FreeAllIn(StagedState::kReady);
}

uint32_t Demotion::ReadersOf(ChunkId chunk) const {
  uint32_t readers = 0;
  staged_.Find([&](uint32_t, const StagedPiece& each) {
    readers += each.state == StagedState::kAtWorker && each.chunk == chunk ? 1 : 0;
    return false;
  });
  return readers;
}

}  // namespace tidepool::memserver

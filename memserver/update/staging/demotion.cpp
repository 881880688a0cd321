#include "memserver/update/staging/demotion.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

void Demotion::Begin(Order order, const JobStates& states, int64_t now_ns) {
  TP_CHECK(!active() && order.plan.directories.size() == states.chunks_on_host(),
           "one job moves at a time, whole");
  order_ = std::move(order);
  why_ = Status();
  state_ = State::kMoving;
  next_chunk_ = next_piece_ = 0;
  pieces_ = written_ = 0;
  began_ns_ = now_ns;
  places_.clear();
  std::vector<uint64_t> ends = order_.offsets;
  for (ChunkId id = 0; id < order_.plan.directories.size(); ++id) {
    uint64_t& end = ends[order_.plan.directories[id]];
    places_.push_back(end);
    end += shm::SpilledChunkBytes(states.spec(), id);
    pieces_ += states.chunk(id).pieces;
  }
}

PieceBuffer Demotion::PieceIn(uint32_t staging, const StateTier& tier,
                              const JobStates& states) const {
  const Ride& ride = rides_[staging];
  const uint32_t directory = order_.plan.directories[ride.chunk];
  const uint64_t elements = std::min(
      shm::kPieceElements, states.chunk(ride.chunk).elements - ride.piece * shm::kPieceElements);
  PieceBuffer piece = tier.PieceIn(staging, shm::SpilledPieceBytes(states.spec(), elements));
  const uint64_t epoch = states.epoch();
  piece.becomes = {.store = tier.store_nonce(directory),
                   .job = states.record().nonce,
                   .chunk = ride.chunk,
                   .piece = ride.piece,
                   .epoch = epoch,
                   .place = places_[ride.chunk] +
                            epoch % 2 * shm::SlotBytes(states.spec(), ride.chunk) +
                            shm::PieceOffset(states.spec(), ride.piece)};
  return piece;
}

bool Demotion::Progress(StateTier* tier, const JobStates& states) {
  bool worked = false;
  while (state_ == State::kMoving && riding_ < kRidesMax && next_chunk_ < places_.size()) {
    const auto staging = tier->TakeStaging(order_.plan.directories[next_chunk_]);
    if (!staging) break;
    rides_[*staging] = {Ride::State::kReady, next_chunk_, next_piece_};
    ++riding_;
    worked = true;
    if (++next_piece_ < states.chunk(next_chunk_).pieces) continue;
    ++next_chunk_;
    next_piece_ = 0;
  }
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
               .Where(poisoned->path),
           tier);
    return true;
  }
  if (!tier->IsDurable(order_.plan.nvme_bytes)) return worked;
  state_ = State::kReady;
  return true;
}

bool Demotion::NextWork(const StateTier& tier, JobStates* states, Work* work) {
  const auto ready = std::find_if(rides_.begin(), rides_.end(), [](const Ride& ride) {
    return ride.state == Ride::State::kReady;
  });
  if (state_ != State::kMoving || ready == rides_.end()) return false;
  ready->state = Ride::State::kAtWorker;
  Chunk& chunk = states->chunk(ready->chunk);
  ++chunk.readers;
  *work = Work{};
  work->name = {WorkKind::kMoveOut, order_.job, 0, ready->chunk, ready->piece};
  work->source = HostPlanesOf(*states, chunk, ready->piece);
  work->staged = PieceIn(static_cast<uint32_t>(ready - rides_.begin()), tier, *states);
  work->planes.count = work->source.count;
  PointIntoStaging(states->spec(), work->staged.payload, &work->planes);
  return true;
}

void Demotion::EndWork(const WorkDone& done, StateTier* tier, JobStates* states) {
  const auto it = std::find_if(rides_.begin(), rides_.end(), [&done](const Ride& ride) {
    return ride.state == Ride::State::kAtWorker && ride.chunk == done.name.chunk &&
           ride.piece == done.name.index;
  });
  TP_CHECK(it != rides_.end(), "work on a piece that moves ends once");
  const auto staging = static_cast<uint32_t>(it - rides_.begin());
  --states->chunk(it->chunk).readers;
  if (state_ != State::kMoving) return EndRide(staging, tier);
  TP_POINT("server.demotion_staged");
  it->state = Ride::State::kWriting;
  const PieceBuffer piece = PieceIn(staging, *tier, *states);
  tier->Start({.kind = nvme::IoKind::kWrite,
               .staging = staging,
               .directory = order_.plan.directories[it->chunk],
               .offset = piece.becomes.place,
               .payload_bytes = piece.payload.size(),
               .job = order_.job,
               .nonce = DemotedKey(states->record().nonce),
               .chunk = it->chunk,
               .piece = it->piece});
}

void Demotion::EndTransfer(const TierDone& done, StateTier* tier) {
  TP_CHECK(Owns(done.staging), "a transfer of a piece that moves ends once");
  const Ride ride = rides_[done.staging];
  EndRide(done.staging, tier);
  if (done.error == 0 || TP_PLANTED("update.demotion_error_ignored")) {
    ++written_;
    return;
  }
  Cancel(Status(ErrorId::kNvmeIoFailed,
                "piece " + std::to_string(ride.piece) + " of chunk " + std::to_string(ride.chunk) +
                    " cannot be written at offset " + std::to_string(done.offset) + ": " +
                    std::strerror(done.error))
             .Where(tier->directory(done.directory).path),
         tier);
}

void Demotion::TakeLate(const TierLate& late, StateTier* tier) {
  Cancel(Status(ErrorId::kNvmeStalled,
                "the drive does not answer: piece " + std::to_string(late.transfer.piece) +
                    " of chunk " + std::to_string(late.transfer.chunk) +
                    " cannot be written at offset " + std::to_string(late.offset))
             .Where(tier->directory(late.transfer.directory).path),
         tier);
  if (!late.lost) return;
  tier->Disown(late.transfer.staging);
  rides_[late.transfer.staging].state = Ride::State::kNone;
  --riding_;
}

void Demotion::Cancel(const Status& why, StateTier* tier) {
  if (!active() || state_ == State::kEnding) return;
  why_ = why;
  state_ = State::kEnding;
  for (uint32_t i = 0; i < rides_.size(); ++i) {
    if (rides_[i].state == Ride::State::kReady) EndRide(i, tier);
  }
}

void Demotion::EndRide(uint32_t staging, StateTier* tier) {
  tier->ReturnStaging(staging);
  rides_[staging].state = Ride::State::kNone;
  --riding_;
}

bool Demotion::moving() const {
  return std::any_of(rides_.begin(), rides_.end(), [](const Ride& ride) {
    return ride.state == Ride::State::kAtWorker || ride.state == Ride::State::kWriting;
  });
}

uint32_t Demotion::ReadersOf(ChunkId chunk) const {
  return static_cast<uint32_t>(
      std::count_if(rides_.begin(), rides_.end(), [chunk](const Ride& ride) {
        return ride.state == Ride::State::kAtWorker && ride.chunk == chunk;
      }));
}

}  // namespace tidepool::memserver

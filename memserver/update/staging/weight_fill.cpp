#include "memserver/update/staging/weight_fill.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/hot.h"
#include "memserver/update/staging/piece_place.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {
namespace {

// The master of a whole piece is the first block under a checksum, in every form.
static_assert(shm::kPieceFrontBytesMax == nvme::kBlockBytes);

}  // namespace

WeightFill::WeightFill(JobStates* states, JobId job, StateTier* tier)
    : states_(states),
      job_(job),
      tier_(tier),
      queue_(2 * shm::kWeightAreasMax),
      staged_(tier == nullptr ? nullptr : &tier->staging(), PieceOwner::kWeightFill, job),
      slots_(StateTier::kStagingSlots) {
  TP_CHECK(tier != nullptr || !states->placement().weights().any(),
           "a job with a window has a tier");
}

void WeightFill::Begin(uint32_t slot) {
  const Chunk& chunk = states_->chunk(states_->window().slots()[slot].chunk);
  fills_[slot] = {.epoch = states_->EpochOf(chunk), .next_piece = 0, .pieces_left = chunk.pieces};
  queue_.Push(slot);
}

uint64_t WeightFill::BeginNext() {
  if (over_ || queue_.empty() || staged_.count() >= kStagedPiecesMax) return 0;
  const uint32_t slot = queue_.Front();
  const ChunkId id = states_->window().slots()[slot].chunk;
  const Chunk& chunk = states_->chunk(id);
  Fill& fill = fills_[slot];
  const auto staging = staged_.Take(chunk.spill.directory, id, fill.next_piece);
  if (!staging) return 0;

  slots_[*staging] = slot;
  if (++fill.next_piece == chunk.pieces) queue_.Pop();
  Read(*staging);
  return nvme::kPieceHeaderBytes + BufferOf(*staging).payload.size();
}

PieceBuffer WeightFill::BufferOf(uint32_t staging) const {
  const StagedPiece& piece = staged_.at(staging);
  const uint64_t whole = PayloadOfPiece(*states_, piece.chunk, piece.piece);
  PieceBuffer buffer = tier_->PieceIn(staging, std::min(whole, shm::kPieceFrontBytesMax));
  buffer.front_of = whole;
  buffer.is = NameOfPiece(*tier_, *states_, piece, fills_[slots_[staging]].epoch);
  return buffer;
}

void WeightFill::Read(uint32_t staging) {
  StagedPiece& piece = staged_.at(staging);
  const PieceBuffer buffer = BufferOf(staging);
  ++piece.reads;
  if (const std::byte* const fallback_slot =
          states_->fallback_slots().Find(piece.chunk, piece.piece, buffer.is.epoch)) {
    const auto image = tier_->Image(staging, buffer.payload.size());
    std::memcpy(image.data(), fallback_slot, image.size());
    piece.state = StagedState::kReady;
    return;
  }

  states_->window().bytes_read += nvme::kPieceHeaderBytes + buffer.payload.size();
  tier_->Start(staging, {.kind = nvme::IoKind::kRead,
                         .offset = buffer.is.place,
                         .payload_bytes = buffer.payload.size(),
                         .range = buffer.is.job});
}

void WeightFill::EndTransfer(const TierDone& done) {
  StagedPiece& piece = staged_.at(done.staging);
  TP_CHECK(piece.state == StagedState::kReading, "a transfer ends once");
  if (over_) return staged_.Free(done.staging);
  if (done.error == 0 || IsPast(done.staging)) {
    piece.state = StagedState::kReady;
    return;
  }

  Fail(done.staging, Status(ErrorId::kNvmeIoFailed,
                            Where(done.staging) + " cannot be read at offset " +
                                std::to_string(done.offset) + ": " + std::strerror(done.error))
                         .Where(tier_->directory(done.directory).path));
}

void WeightFill::GiveUp(const TierLate& late) {
  if (over_) return staged_.Free(late.staging);
  Fail(late.staging, Status(ErrorId::kNvmeStalled, "the drive has not answered: " +
                                                       Where(late.staging) + " cannot be read")
                         .Where(tier_->directory(late.directory).path));
}

TP_HOT bool WeightFill::NextWork(Work* work) {
  const uint32_t staging = staged_.FindOldest(
      [](uint32_t, const StagedPiece& each) { return each.state == StagedState::kReady; });
  if (staging == StagingTable::kNone) return false;
  StagedPiece& piece = staged_.at(staging);
  piece.state = StagedState::kAtWorker;
  const Chunk& chunk = states_->chunk(piece.chunk);

  *work = Work{};
  work->name = {WorkKind::kFillWindow, job_, 0, piece.chunk, piece.piece};
  work->staged = BufferOf(staging);
  work->count = ElementsOfPiece(chunk, piece.piece);
  work->dtype = chunk.dtype;
  work->planes.states = chunk.states;
  work->to = states_->window().slots()[slots_[staging]].data +
             piece.piece * shm::kPieceElements * BytesOf(chunk.dtype);
  const shm::SpilledPiece at = shm::SpilledPieceOf(states_->spec(), piece.chunk, work->count);
  work->from = work->staged.payload.data() + (chunk.is_split() ? at.high : 0);
  return true;
}

// True if the drive's slot may be overwritten during the read.
bool WeightFill::IsPast(uint32_t staging) const {
  const Chunk& chunk = states_->chunk(staged_.at(staging).chunk);
  return states_->EpochOf(chunk) != fills_[slots_[staging]].epoch;
}

bool WeightFill::EndWork(const WorkDone& done) {
  const uint32_t staging = staged_.FindAtWorker(done.name.chunk, done.name.index);
  if (over_) {
    staged_.Free(staging);
    return false;
  }

  if (done.intact || IsPast(staging)) return EndPiece(staging);
  if (staged_.at(staging).reads < kReadsMax) {
    Read(staging);
    return false;
  }
  Fail(staging, Status(ErrorId::kNvmeDataBad,
                       Where(staging) + " cannot be trusted: " + WhyNotIntact(BufferOf(staging))));
  return false;
}

bool WeightFill::EndPiece(uint32_t staging) {
  const uint32_t slot = slots_[staging];
  staged_.Free(staging);
  Fill& fill = fills_[slot];
  TP_CHECK(fill.pieces_left > 0, "a piece ends once");
  if (--fill.pieces_left > 0) return false;
  ++states_->window().fills;
  return states_->weights().EndFill(slot, fill.epoch);
}

std::string WeightFill::Where(uint32_t staging) const {
  const StagedPiece& piece = staged_.at(staging);
  return "weights in piece " + std::to_string(piece.piece) + " of chunk " +
         std::to_string(piece.chunk) + " of job " + std::to_string(job_) + " (" +
         states_->spec().name + ")";
}

void WeightFill::Fail(uint32_t staging, Status why) {
  failure_ = std::move(why);
  staged_.Free(staging);
  Abandon();
}

void WeightFill::Abandon() {
  over_ = true;
  queue_.Clear();
  staged_.FreeAllIn(StagedState::kReady);
}

}  // namespace tidepool::memserver

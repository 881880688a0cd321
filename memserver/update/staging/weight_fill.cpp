#include "memserver/update/staging/weight_fill.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
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
      rides_(StateTier::kStagingSlots) {
  TP_CHECK(tier != nullptr || !states->window().any(), "a job with a window has a tier");
}

void WeightFill::Begin(uint32_t slot) {
  const Chunk& chunk = states_->chunk(states_->window().slots()[slot].chunk);
  fills_[slot] = {.epoch = states_->EpochOf(chunk), .next_piece = 0, .pieces_left = chunk.pieces};
  queue_.Push(slot);
}

uint64_t WeightFill::BeginNext() {
  if (over_ || queue_.empty() || riding_ >= kRidesMax) return 0;
  const uint32_t slot = queue_.Front();
  const Chunk& chunk = states_->chunk(states_->window().slots()[slot].chunk);
  const auto staging = tier_->TakeStaging(chunk.spill.directory);
  if (!staging) return 0;
  Fill& fill = fills_[slot];
  rides_[*staging] = {.slot = slot, .piece = fill.next_piece, .number = ++numbers_};
  ++riding_;
  if (++fill.next_piece == chunk.pieces) queue_.Pop();
  Read(*staging);
  return nvme::kPieceHeaderBytes + PieceOf(*staging).payload.size();
}

uint64_t WeightFill::ElementsOf(const Ride& ride) const {
  return std::min(shm::kPieceElements,
                  states_->chunk(ChunkOf(ride)).elements - ride.piece * shm::kPieceElements);
}

PieceBuffer WeightFill::PieceOf(uint32_t staging) const {
  const Ride& ride = rides_[staging];
  const uint64_t epoch = fills_[ride.slot].epoch,
                 whole = shm::SpilledPieceBytes(states_->spec(), ElementsOf(ride));
  const SpillPlace& place = states_->chunk(ChunkOf(ride)).spill;
  PieceBuffer piece = tier_->PieceIn(staging, std::min(whole, shm::kPieceFrontBytesMax));
  piece.front_of = whole;
  piece.is = {.store = tier_->store_nonce(place.directory),
              .job = states_->record().nonce,
              .chunk = ChunkOf(ride),
              .piece = ride.piece,
              .epoch = epoch,
              .place = place.offset + epoch % 2 * place.slot_bytes +
                       shm::PieceOffset(states_->spec(), ride.piece)};
  return piece;
}

void WeightFill::Read(uint32_t staging) {
  Ride& ride = rides_[staging];
  const PieceBuffer piece = PieceOf(staging);
  ++ride.reads;
  if (const std::byte* const stand_in =
          states_->stand_ins().Find(piece.is.chunk, piece.is.piece, piece.is.epoch)) {
    const auto image = tier_->Image(staging, piece.payload.size());
    std::memcpy(image.data(), stand_in, image.size());
    ride.state = State::kReady;
    return;
  }
  ride.state = State::kReading;
  states_->window().bytes_read += nvme::kPieceHeaderBytes + piece.payload.size();
  tier_->Start({.kind = nvme::IoKind::kRead,
                .staging = staging,
                .directory = states_->chunk(piece.is.chunk).spill.directory,
                .offset = piece.is.place,
                .payload_bytes = piece.payload.size(),
                .job = job_,
                .nonce = piece.is.job,
                .chunk = piece.is.chunk,
                .piece = piece.is.piece});
}

void WeightFill::EndTransfer(const TierDone& done) {
  Ride& ride = rides_[done.staging];
  TP_CHECK(ride.state == State::kReading, "a transfer ends once");
  if (over_) return EndRide(done.staging);
  if (done.error == 0 || IsPast(ride)) {
    ride.state = State::kReady;
    return;
  }
  Fail(done.staging, Status(ErrorId::kNvmeIoFailed, Where(ride) + " cannot be read at offset " +
                                                        std::to_string(done.offset) + ": " +
                                                        std::strerror(done.error))
                         .Where(tier_->directory(done.directory).path));
}

void WeightFill::GiveUp(const TierLate& late) {
  Ride& ride = rides_[late.transfer.staging];
  ride.out = true;
  if (over_) return EndRide(late.transfer.staging);
  Fail(late.transfer.staging, Status(ErrorId::kNvmeStalled, "the drive has not answered: " +
                                                                Where(ride) + " cannot be read")
                                  .Where(tier_->directory(late.transfer.directory).path));
}

bool WeightFill::NextWork(Work* work) {
  uint32_t oldest = StateTier::kStagingSlots;
  for (uint32_t i = 0; i < rides_.size() && riding_ > 0; ++i) {
    if (rides_[i].state != State::kReady) continue;
    if (oldest == StateTier::kStagingSlots || rides_[i].number < rides_[oldest].number) oldest = i;
  }
  if (oldest == StateTier::kStagingSlots) return false;
  Ride& ride = rides_[oldest];
  ride.state = State::kAtWorker;
  const shm::JobSpec& spec = states_->spec();
  *work = Work{};
  work->name = {WorkKind::kFillWindow, job_, 0, ChunkOf(ride), ride.piece};
  work->staged = PieceOf(oldest);
  work->count = ElementsOf(ride);
  work->dtype = spec.dtype;
  work->planes.states = spec.optimizer.states;
  work->to = states_->window().slots()[ride.slot].data +
             ride.piece * shm::kPieceElements * BytesOf(spec.dtype);
  work->from = work->staged.payload.data() +
               (states_->is_split() ? shm::SpilledPieceOf(spec, work->count).high : 0);
  return true;
}

// A slot that may be overwritten during the read.
bool WeightFill::IsPast(const Ride& ride) const {
  return states_->EpochOf(states_->chunk(ChunkOf(ride))) != fills_[ride.slot].epoch;
}

bool WeightFill::EndWork(const WorkDone& done) {
  const auto it = std::find_if(rides_.begin(), rides_.end(), [&](const Ride& ride) {
    return ride.state == State::kAtWorker && ride.piece == done.name.index &&
           ChunkOf(ride) == done.name.chunk;
  });
  TP_CHECK(it != rides_.end(), "work on a piece ends once");
  const auto staging = static_cast<uint32_t>(it - rides_.begin());
  if (over_) {
    EndRide(staging);
    return false;
  }
  if (done.intact || IsPast(*it)) return EndPiece(staging);
  if (it->reads < kReadsMax) {
    Read(staging);
    return false;
  }
  Fail(staging, Status(ErrorId::kNvmeDataBad,
                       Where(*it) + " cannot be trusted: " + WhyNotIntact(PieceOf(staging))));
  return false;
}

bool WeightFill::EndPiece(uint32_t staging) {
  const uint32_t slot = rides_[staging].slot;
  EndRide(staging);
  Fill& fill = fills_[slot];
  TP_CHECK(fill.pieces_left > 0, "a piece ends once");
  if (--fill.pieces_left > 0) return false;
  ++states_->window().fills;
  return states_->EndFill(slot, fill.epoch);
}

void WeightFill::EndRide(uint32_t staging) {
  Ride& ride = rides_[staging];
  ride.out ? tier_->Disown(staging) : tier_->ReturnStaging(staging);
  ride = {};
  --riding_;
}

std::string WeightFill::Where(const Ride& ride) const {
  return "weights in piece " + std::to_string(ride.piece) + " of chunk " +
         std::to_string(ChunkOf(ride)) + " of job " + std::to_string(job_) + " (" +
         states_->spec().name + ")";
}

void WeightFill::Fail(uint32_t staging, Status why) {
  failure_ = std::move(why);
  EndRide(staging);
  Abandon();
}

bool WeightFill::moving() const {
  return std::any_of(rides_.begin(), rides_.end(), [](const Ride& ride) {
    return ride.state == State::kReading || ride.state == State::kAtWorker;
  });
}

void WeightFill::Abandon() {
  over_ = true;
  queue_.Clear();
  for (uint32_t i = 0; i < rides_.size(); ++i) {
    if (rides_[i].state == State::kReady) EndRide(i);
  }
}

}  // namespace tidepool::memserver

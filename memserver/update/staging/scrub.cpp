#include "memserver/update/staging/scrub.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/planted.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {
namespace {

uint64_t ElementsOf(const Chunk& chunk, uint32_t piece) {
  return std::min(shm::kPieceElements, chunk.elements - piece * shm::kPieceElements);
}

}  // namespace

uint64_t SpilledPieces(const JobStates& states) {
  uint64_t pieces = 0;
  for (ChunkId id = 0; id < states.spec().chunks.size(); ++id)
    pieces += states.chunk(id).spilled ? states.chunk(id).pieces : 0;
  return pieces;
}

void Scrub::Begin(std::vector<JobId> jobs, uint64_t pieces, int64_t now_ns) {
  if (row_.state == ScrubState::kRunning) return;
  row_ = {.state = ScrubState::kRunning, .pieces = pieces};
  began_ns_ = now_ns;
  jobs_ = std::move(jobs);
  std::reverse(jobs_.begin(), jobs_.end());
  chunk_ = piece_ = reads_ = 0;
}

std::optional<JobId> Scrub::job() const {
  return jobs_.empty() ? std::nullopt : std::optional<JobId>(jobs_.back());
}

bool Scrub::Progress(StateTier* tier, const JobStates* states, int64_t now_ns) {
  if (row_.state != ScrubState::kRunning || moving()) return false;
  if (state_ == State::kRead) {
    if (states != nullptr && error_ == 0) return false;  // a worker takes it
    if (states != nullptr)
      NoteDamage(*tier, *states, std::string("it cannot be read: ") + std::strerror(error_));
    Leave(tier);
    if (states != nullptr) NextPiece();
    return true;
  }
  if (jobs_.empty()) {
    row_.state = ScrubState::kDone;
    row_.seconds = static_cast<double>(now_ns - began_ns_) / kNsPerSecond;
    LogInfo("states on NVMe were checked",
            {{"pieces", row_.pieces_checked}, {"of", row_.pieces}, {"damaged", row_.damaged}});
    return true;
  }
  if (states == nullptr || !FindPiece(*states)) {
    jobs_.pop_back();
    chunk_ = piece_ = reads_ = 0;
    return true;
  }
  const auto staging = tier->TakeStaging(states->chunk(chunk_).spill.directory);
  if (!staging) return false;
  staging_ = *staging;
  Read(tier, *states);
  return true;
}

// The next piece that has states, from (chunk_, piece_) on; false when the job has none left.
bool Scrub::FindPiece(const JobStates& states) {
  for (; chunk_ < states.spec().chunks.size(); ++chunk_, piece_ = 0) {
    const Chunk& chunk = states.chunk(chunk_);
    if (chunk.spilled && chunk.version != kNoVersion && piece_ < chunk.pieces) return true;
  }
  return false;
}

PieceBuffer Scrub::PieceIn(const StateTier& tier, const JobStates& states) const {
  const Chunk& chunk = states.chunk(chunk_);
  const SpillPlace& place = chunk.spill;
  PieceBuffer piece =
      tier.PieceIn(staging_, shm::SpilledPieceBytes(states.spec(), ElementsOf(chunk, piece_)));
  piece.is = {.store = tier.store_nonce(place.directory),
              .job = states.record().nonce,
              .chunk = chunk_,
              .piece = piece_,
              .epoch = epoch_,
              .place = place.offset + epoch_ % 2 * place.slot_bytes +
                       shm::PieceOffset(states.spec(), piece_)};
  return piece;
}

void Scrub::Read(StateTier* tier, const JobStates& states) {
  const uint64_t epoch = states.EpochOf(states.chunk(chunk_));
  if (epoch != epoch_) reads_ = 0;  // what was read before was left meanwhile
  epoch_ = epoch;
  ++reads_;
  error_ = 0;
  const PieceBuffer piece = PieceIn(*tier, states);
  if (const std::byte* const stand_in = states.stand_ins().Find(chunk_, piece_, epoch_)) {
    const auto image = tier->Image(staging_, piece.payload.size());
    std::memcpy(image.data(), stand_in, image.size());
    state_ = State::kRead;
    return;
  }
  state_ = State::kReading;
  tier->Start({.kind = nvme::IoKind::kRead,
               .staging = staging_,
               .directory = states.chunk(chunk_).spill.directory,
               .offset = piece.is.place,
               .payload_bytes = piece.payload.size(),
               .job = jobs_.back(),
               .nonce = piece.is.job,
               .chunk = chunk_,
               .piece = piece_});
}

void Scrub::EndTransfer(const TierDone& done) {
  TP_CHECK(Owns(done.staging), "the scrub's own transfer ends");
  state_ = State::kRead;
  error_ = done.error;
}

void Scrub::GiveUp(StateTier* tier, const JobStates* states) {
  tier->Disown(staging_);
  state_ = State::kIdle;
  if (states == nullptr) return;
  NoteDamage(*tier, *states, "the drive does not answer");
  NextPiece();
}

bool Scrub::NextWork(JobId job, const StateTier& tier, const JobStates& states, Work* work) {
  if (state_ != State::kRead || error_ != 0 || jobs_.back() != job) return false;
  state_ = State::kAtWorker;
  *work = Work{};
  work->name = {WorkKind::kVerify, job, 0, chunk_, piece_};
  work->staged = PieceIn(tier, states);
  return true;
}

void Scrub::EndWork(const WorkDone& done, StateTier* tier, const JobStates& states) {
  TP_CHECK(state_ == State::kAtWorker, "a piece is checked once");
  const PieceBuffer piece = PieceIn(*tier, states);
  const bool left =
      states.EpochOf(states.chunk(chunk_)) != epoch_ && !TP_PLANTED("update.scrub_epoch_unchecked");
  if (!done.intact && (left || reads_ < kReadsMax)) {
    row_.repetitions += left ? 0 : 1;
    return Read(tier, states);
  }
  if (done.intact) {
    ++row_.pieces_checked;
    row_.bytes_checked += nvme::kPieceHeaderBytes + piece.payload.size();
  } else {
    NoteDamage(*tier, states, WhyNotIntact(piece));
  }
  Leave(tier);
  NextPiece();
}

void Scrub::NoteDamage(const StateTier& tier, const JobStates& states, const std::string& what) {
  const PieceBuffer piece = PieceIn(tier, states);
  ++row_.pieces_checked;
  ++row_.damaged;
  const std::string& directory = tier.directory(states.chunk(chunk_).spill.directory).path;
  LogError("a piece of states on NVMe is damaged", {{"job", jobs_.back()},
                                                    {"name", states.spec().name},
                                                    {"chunk", chunk_},
                                                    {"piece", piece_},
                                                    {"directory", directory},
                                                    {"offset", piece.is.place},
                                                    {"what", what}});
  if (row_.damage.size() == kDamageMax) return;
  row_.damage.push_back(
      {jobs_.back(), states.spec().name, chunk_, piece_, directory, piece.is.place, what});
}

void Scrub::Leave(StateTier* tier) {
  tier->ReturnStaging(staging_);
  state_ = State::kIdle;
}

void Scrub::NextPiece() {
  ++piece_;
  reads_ = 0;
}

ScrubRow Scrub::Row(int64_t now_ns) const {
  ScrubRow row = row_;
  if (row.state == ScrubState::kRunning)
    row.seconds = static_cast<double>(now_ns - began_ns_) / kNsPerSecond;
  return row;
}

}  // namespace tidepool::memserver

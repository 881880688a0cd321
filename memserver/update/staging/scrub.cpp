#include "memserver/update/staging/scrub.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/planted.h"
#include "memserver/update/staging/piece_place.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

void Scrub::Begin(std::vector<JobId> jobs, uint64_t pieces, int64_t now_ns) {
  if (row_.state == ScrubState::kRunning) return;
  row_ = {.state = ScrubState::kRunning, .pieces = pieces};
  began_ns_ = now_ns;
  jobs_ = std::move(jobs);
  std::reverse(jobs_.begin(), jobs_.end());
  chunk_ = piece_ = 0;
}

std::optional<JobId> Scrub::job() const {
  return jobs_.empty() ? std::nullopt : std::optional<JobId>(jobs_.back());
}

bool Scrub::Progress(StateTier* tier, const JobStates* states, int64_t now_ns) {
  if (row_.state != ScrubState::kRunning || moving()) return false;
  if (staged_.count() > 0) return EndUnread(*tier, states);
  if (jobs_.empty()) {
    row_.state = ScrubState::kDone;
    row_.seconds = static_cast<double>(now_ns - began_ns_) / kNsPerSecond;
    LogInfo("states on NVMe were checked",
            {{"pieces", row_.pieces_checked}, {"of", row_.pieces}, {"damaged", row_.damaged}});
    return true;
  }

  const Found found = states == nullptr ? Found::kNone : FindPiece(*states);
  if (found == Found::kLater) return true;
  if (found == Found::kNone) {
    jobs_.pop_back();
    chunk_ = piece_ = 0;
    return true;
  }

  staged_ = OwnedPieces(&tier->staging(), PieceOwner::kScrub, jobs_.back());
  const auto staging = staged_.Take(states->chunk(chunk_).spill.directory, chunk_, piece_);
  if (!staging) return false;
  staging_ = *staging;
  Read(tier, *states);
  return true;
}

// Ends with a piece that no worker will take, because it could not be read or its job is gone.
// False if a worker takes it.
bool Scrub::EndUnread(const StateTier& tier, const JobStates* states) {
  if (states != nullptr && error_ == 0) return false;
  if (states != nullptr)
    NoteDamage(tier, *states, std::string("it cannot be read: ") + std::strerror(error_));
  staged_.Free(staging_);
  if (states != nullptr) ++piece_;
  return true;
}

bool Scrub::IsIn(StagedState state) const {
  return staged_.count() > 0 && staged_.at(staging_).state == state;
}

// Finds the next piece that has states, from (chunk_, piece_) on. Most chunks of a large job may
// lie on the host, so the search continues in the next turn.
Scrub::Found Scrub::FindPiece(const JobStates& states) {
  for (uint32_t looks = 0; chunk_ < states.spec().chunks.size(); ++chunk_, piece_ = 0) {
    if (looks++ == kChunksPerTurn && !TP_PLANTED("update.scrub_walks_all")) return Found::kLater;
    const Chunk& chunk = states.chunk(chunk_);
    if (chunk.spilled && chunk.version != kNoVersion && piece_ < chunk.pieces) return Found::kPiece;
  }
  return Found::kNone;
}

PieceBuffer Scrub::BufferOf(const StateTier& tier, const JobStates& states) const {
  const StagedPiece& piece = staged_.at(staging_);
  PieceBuffer buffer = tier.PieceIn(staging_, PayloadOfPiece(states, chunk_, piece_));
  buffer.is = NameOfPiece(tier, states, piece, epoch_);
  return buffer;
}

void Scrub::Read(StateTier* tier, const JobStates& states) {
  const uint64_t epoch = states.EpochOf(states.chunk(chunk_));
  StagedPiece& piece = staged_.at(staging_);
  if (epoch != epoch_) piece.reads = 0;  // earlier reads were of a slot that is no longer current
  epoch_ = epoch;
  ++piece.reads;
  error_ = 0;

  const PieceBuffer buffer = BufferOf(*tier, states);
  if (const std::byte* const fallback_slot = states.fallback_slots().Find(chunk_, piece_, epoch_)) {
    const auto image = tier->Image(staging_, buffer.payload.size());
    std::memcpy(image.data(), fallback_slot, image.size());
    piece.state = StagedState::kReady;
    return;
  }

  tier->Start(staging_, {.kind = nvme::IoKind::kRead,
                         .offset = buffer.is.place,
                         .payload_bytes = buffer.payload.size(),
                         .range = buffer.is.job});
}

void Scrub::EndTransfer(const TierDone& done) {
  StagedPiece& piece = staged_.at(done.staging);
  TP_CHECK(piece.state == StagedState::kReading, "the scrub's own transfer ends");
  piece.state = StagedState::kReady;
  error_ = done.error;
}

void Scrub::GiveUp(StateTier* tier, const JobStates* states) {
  if (states != nullptr) NoteDamage(*tier, *states, "the drive does not answer");
  staged_.Free(staging_);
  if (states != nullptr) ++piece_;
}

bool Scrub::NextWork(JobId job, const StateTier& tier, const JobStates& states, Work* work) {
  if (!IsIn(StagedState::kReady) || error_ != 0 || jobs_.back() != job) return false;
  staged_.at(staging_).state = StagedState::kAtWorker;
  *work = Work{};
  work->name = {WorkKind::kVerify, job, 0, chunk_, piece_};
  work->staged = BufferOf(tier, states);
  return true;
}

void Scrub::EndWork(const WorkDone& done, StateTier* tier, const JobStates& states) {
  TP_CHECK(IsIn(StagedState::kAtWorker), "a piece is checked once");
  const PieceBuffer buffer = BufferOf(*tier, states);
  const bool left =
      states.EpochOf(states.chunk(chunk_)) != epoch_ && !TP_PLANTED("update.scrub_epoch_unchecked");
  if (!done.intact && (left || staged_.at(staging_).reads < kReadsMax)) {
    row_.repetitions += left ? 0 : 1;
    return Read(tier, states);
  }

  if (done.intact) {
    ++row_.pieces_checked;
    row_.bytes_checked += nvme::kPieceHeaderBytes + buffer.payload.size();
  } else {
    NoteDamage(*tier, states, WhyNotIntact(buffer));
  }
  staged_.Free(staging_);
  ++piece_;
}

void Scrub::NoteDamage(const StateTier& tier, const JobStates& states, const std::string& what) {
  const uint64_t place = BufferOf(tier, states).is.place;
  ++row_.pieces_checked;
  ++row_.damaged;
  const std::string& directory = tier.directory(states.chunk(chunk_).spill.directory).path;

  LogError("a piece of states on NVMe is damaged", {{"job", jobs_.back()},
                                                    {"name", states.spec().name},
                                                    {"chunk", chunk_},
                                                    {"piece", piece_},
                                                    {"directory", directory},
                                                    {"offset", place},
                                                    {"what", what}});
  if (row_.damage.size() == kDamageMax) return;
  row_.damage.push_back({jobs_.back(), states.spec().name, chunk_, piece_, directory, place, what});
}

ScrubRow Scrub::Row(int64_t now_ns) const {
  ScrubRow row = row_;
  if (row.state == ScrubState::kRunning)
    row.seconds = static_cast<double>(now_ns - began_ns_) / kNsPerSecond;
  return row;
}

}  // namespace tidepool::memserver

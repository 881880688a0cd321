#include "memserver/traffic/staging/staging_table.h"

#include <algorithm>

#include "base/planted.h"

namespace tidepool::memserver {
namespace {

// Slots always left to each other directory; and the fewest that one may always hold.
constexpr uint32_t kLeftToOthers = 4, kTakenMin = 8;

uint32_t TakenMax(size_t directories) {
  const uint32_t left = kLeftToOthers * static_cast<uint32_t>(directories - 1);
  return std::max(kTakenMin, StagingTable::kSlots - std::min(StagingTable::kSlots, left));
}

}  // namespace

StagingTable::StagingTable(size_t directories)
    : pieces_(kSlots), taken_(directories), taken_max_(TakenMax(directories)) {
  for (uint32_t slot = kSlots; slot > 0; --slot) free_.push_back(slot - 1);
}

std::optional<uint32_t> StagingTable::Take(const Wanted& wanted) {
  TP_CHECK(wanted.owner != PieceOwner::kNobody, "a staged piece has an owner");
  if (!HasRoom(wanted.directory)) return std::nullopt;
  const uint32_t slot = free_.back();
  free_.pop_back();
  ++taken_[wanted.directory];

  pieces_[slot] = {.owner = wanted.owner,
                   .state = StagedState::kReady,
                   .job = wanted.job,
                   .chunk = wanted.chunk,
                   .piece = wanted.piece,
                   .directory = wanted.directory,
                   .number = ++numbers_,
                   .transfer = {},
                   .late = {}};
  return slot;
}

void StagingTable::Free(uint32_t slot) {
  StagedPiece& piece = pieces_[slot];
  TP_CHECK(piece.owner != PieceOwner::kNobody, "a staged piece is freed once, by its owner");
  if (!piece.in_transfer || TP_PLANTED("traffic.staging_freed_in_transfer")) return PutBack(slot);
  piece.owner = PieceOwner::kNobody;
  piece.state = StagedState::kAbandoned;
}

void StagingTable::PutBack(uint32_t slot) {
  --taken_[pieces_[slot].directory];
  pieces_[slot] = {};
  free_.push_back(slot);
}

void StagingTable::BeginTransfer(uint32_t slot, const PieceTransfer& transfer) {
  StagedPiece& piece = pieces_[slot];
  TP_CHECK(piece.owner != PieceOwner::kNobody && !piece.in_transfer,
           "a staged piece is in one transfer at a time");
  piece.state =
      transfer.kind == nvme::IoKind::kRead ? StagedState::kReading : StagedState::kWriting;
  piece.transfer = transfer;
  piece.in_transfer = true;
}

bool StagingTable::EndTransfer(uint32_t slot) {
  StagedPiece& piece = pieces_[slot];
  TP_CHECK(piece.in_transfer, "a transfer ends once");
  piece.in_transfer = false;
  piece.late = {};
  if (piece.state != StagedState::kAbandoned) return true;
  PutBack(slot);
  return false;
}

bool StagingTable::MayStillWrite(uint64_t range, uint32_t directory) const {
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const StagedPiece& piece) {
    return piece.state == StagedState::kAbandoned && piece.transfer.kind == nvme::IoKind::kWrite &&
           piece.transfer.range == range && piece.directory == directory;
  });
}

void StagingTable::NoteRemoved(uint64_t range) {
  for (StagedPiece& piece : pieces_)
    piece.range_removed |= piece.state == StagedState::kAbandoned && piece.transfer.range == range;
}

std::optional<uint32_t> OwnedPieces::Take(uint32_t directory, ChunkId chunk, uint32_t piece) {
  const auto slot = table_->Take({owner_, job_, directory, chunk, piece});
  count_ += slot ? 1 : 0;
  return slot;
}

void OwnedPieces::Free(uint32_t slot) {
  TP_CHECK(Has(slot), "a staged piece is freed once, by its owner");
  table_->Free(slot);
  --count_;
}

uint32_t OwnedPieces::FindAtWorker(ChunkId chunk, uint32_t piece) const {
  const uint32_t slot = Find([&](uint32_t, const StagedPiece& each) {
    return each.state == StagedState::kAtWorker && each.chunk == chunk && each.piece == piece;
  });
  TP_CHECK(slot != StagingTable::kNone, "work on a staged piece ends once");
  return slot;
}

bool OwnedPieces::AnyMoving() const {
  return Find([](uint32_t, const StagedPiece& each) {
           return each.state == StagedState::kReading || each.state == StagedState::kAtWorker ||
                  each.state == StagedState::kWriting;
         }) != StagingTable::kNone;
}

void OwnedPieces::FreeAllIn(StagedState state) {
  for (uint32_t slot = 0; count_ > 0 && slot < StagingTable::kSlots; ++slot) {
    if (Has(slot) && table_->at(slot).state == state) Free(slot);
  }
}

}  // namespace tidepool::memserver

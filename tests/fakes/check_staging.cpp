#include "tests/fakes/check_staging.h"

#include <array>
#include <cstdint>

#include "base/check.h"

namespace tidepool::memserver {
namespace {

constexpr uint32_t kSlots = StagingTable::kSlots;

// What the state of a slot says of its owner and its transfer.
void CheckState(const StagedPiece& piece) {
  const bool owned = piece.owner != PieceOwner::kNobody;
  switch (piece.state) {
    case StagedState::kFree:
      TP_CHECK(!owned && !piece.in_transfer, "a free slot is nobody's, the drive's neither");
      return;
    case StagedState::kAbandoned:
      TP_CHECK(!owned && piece.in_transfer, "what was abandoned is free when its answer has come");
      return;
    case StagedState::kReady:
    case StagedState::kAtWorker:
      TP_CHECK(owned && !piece.in_transfer, "no drive touches what is ready or at a worker");
      return;
    case StagedState::kReading:
    case StagedState::kWriting:
      TP_CHECK(owned && piece.in_transfer, "whoever waits for a drive has asked it");
      return;
    case StagedState::kUnwritten: TP_CHECK(owned, "an unwritten piece has an owner"); return;
  }
}

void CheckFreeSlots(const StateTier& tier) {
  const StagingTable& table = tier.staging();
  std::array<bool, kSlots> listed{};
  for (const uint32_t slot : table.free_slots()) {
    TP_CHECK(!listed[slot], "a staged piece is freed once");
    listed[slot] = true;
  }
  std::array<uint32_t, kNvmeDirectoriesMax> taken{};
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    const StagedPiece& piece = table.at(slot);
    TP_CHECK(listed[slot] == (piece.state == StagedState::kFree), "the free slots are listed");
    taken[piece.directory] += listed[slot] ? 0 : 1;
  }
  for (uint32_t d = 0; d < tier.directories().size(); ++d)
    TP_CHECK(table.taken(d) == taken[d], "each directory has the slots that were taken for it");
}

// The pieces that the table says the owner has of the job.
uint32_t StagedOf(const StagingTable& table, PieceOwner owner, JobId job) {
  uint32_t pieces = 0;
  for (const StagedPiece& piece : table.all())
    pieces += piece.owner == owner && piece.job == job ? 1 : 0;
  return pieces;
}

void CheckOwners(const StagingTable& table, const Tables& tables, const Demotion& demotion) {
  uint32_t counted = 0;
  for (const auto& job : tables.jobs) {
    const uint32_t spilled = job->spills.pieces_in_staging(),
                   filled = job->fill.pieces_in_staging();
    TP_CHECK(StagedOf(table, PieceOwner::kSpillQueue, job->id) == spilled &&
                 StagedOf(table, PieceOwner::kWeightFill, job->id) == filled,
             "a job counts the pieces that the staging table says are its own");
    uint32_t at_worker = 0;
    for (const StagedPiece& piece : table.all())
      at_worker += piece.state == StagedState::kAtWorker && piece.job == job->id ? 1 : 0;
    TP_CHECK(at_worker <= job->work_at_team, "a piece that is at a worker comes back");
    counted += spilled + filled;
  }
  const uint32_t demoted = demotion.pieces_in_staging();
  TP_CHECK(StagedOf(table, PieceOwner::kDemotion, demotion.job()) == demoted,
           "a demotion counts its pieces");
  counted += demoted + tables.scrub.pieces_in_staging();

  uint32_t owned = 0;
  for (const StagedPiece& piece : table.all()) {
    owned += piece.owner != PieceOwner::kNobody ? 1 : 0;
    TP_CHECK(piece.owner == PieceOwner::kNobody || tables.FindJob(piece.job) != nullptr ||
                 piece.owner == PieceOwner::kScrub,
             "a job stays while its states move");
  }
  TP_CHECK(owned == counted, "a staged piece has one owner, which hears its answer");
}

void CheckWrites(const StagingTable& table) {
  for (uint32_t a = 0; a < kSlots; ++a) {
    const StagedPiece& one = table.at(a);
    if (!one.in_transfer || one.transfer.kind != nvme::IoKind::kWrite) continue;
    for (uint32_t b = a + 1; b < kSlots; ++b) {
      const StagedPiece& other = table.at(b);
      TP_CHECK(!other.in_transfer || other.transfer.kind != nvme::IoKind::kWrite ||
                   other.directory != one.directory || other.transfer.offset != one.transfer.offset,
               "no place of a drive is written from two slots");
    }
  }
}

}  // namespace

void CheckStaging(const StateTier& tier, const Tables& tables, const Demotion& demotion) {
  const StagingTable& table = tier.staging();
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    TP_CHECK(table.at(slot).in_transfer == tier.transfers().Holds(slot),
             "the staging table knows what a drive may still touch");
    CheckState(table.at(slot));
  }
  CheckFreeSlots(tier);
  CheckOwners(table, tables, demotion);
  CheckWrites(table);
}

}  // namespace tidepool::memserver

#include "memserver/update/staging/piece_place.h"

#include <algorithm>

#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

uint64_t ElementsOfPiece(const Chunk& chunk, uint32_t piece) {
  return std::min(shm::kPieceElements, chunk.elements - piece * shm::kPieceElements);
}

uint64_t PayloadOfPiece(const JobStates& states, ChunkId chunk, uint32_t piece) {
  return shm::SpilledPieceBytes(states.spec(), chunk, ElementsOfPiece(states.chunk(chunk), piece));
}

nvme::PieceName NameOfPiece(const StateTier& tier, const JobStates& states,
                            const StagedPiece& piece, uint64_t epoch) {
  const SpillPlace& place = states.chunk(piece.chunk).spill;
  return {.store = tier.store_nonce(place.directory),
          .job = states.record().nonce,
          .chunk = piece.chunk,
          .piece = piece.piece,
          .epoch = epoch,
          .place = place.offset + epoch % 2 * place.slot_bytes +
                   shm::PieceOffset(states.spec(), piece.chunk, piece.piece)};
}

}  // namespace tidepool::memserver

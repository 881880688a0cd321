#include "memserver/traffic/staged_piece.h"

#include "base/planted.h"

namespace tidepool::memserver {

namespace {

nvme::PieceVerdict Verify(const StagedPiece& piece) {
  return nvme::VerifyFront(*piece.header, piece.is, piece.payload,
                           piece.front_of == 0 ? piece.payload.size() : piece.front_of);
}

}  // namespace

bool IsIntact(const StagedPiece& piece) {
  return Verify(piece).ok() || TP_PLANTED("update.staged_unchecked");
}

std::string WhyNotIntact(const StagedPiece& piece) {
  return nvme::TextOf(Verify(piece), *piece.header, piece.is);
}

void Seal(const StagedPiece& piece) {
  nvme::SealPiece(piece.becomes, piece.payload, piece.header);
}

}  // namespace tidepool::memserver

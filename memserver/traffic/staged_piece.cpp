#include "memserver/traffic/staged_piece.h"

#include "base/planted.h"

namespace tidepool::memserver {

bool IsIntact(const StagedPiece& piece) {
  return nvme::VerifyPiece(*piece.header, piece.is, piece.payload).ok() || TP_PLANTED("update.staged_unchecked");
}

std::string WhyNotIntact(const StagedPiece& piece) {
  return nvme::TextOf(nvme::VerifyPiece(*piece.header, piece.is, piece.payload), *piece.header, piece.is);
}

void Seal(const StagedPiece& piece) {
  nvme::SealPiece(piece.becomes, piece.payload, piece.header);
}

}  // namespace tidepool::memserver

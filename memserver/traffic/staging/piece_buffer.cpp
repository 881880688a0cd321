#include "memserver/traffic/staging/piece_buffer.h"

#include "base/planted.h"

namespace tidepool::memserver {

namespace {

nvme::PieceVerdict Verify(const PieceBuffer& piece) {
  return nvme::VerifyFront(*piece.header, piece.is, piece.payload,
                           piece.front_of == 0 ? piece.payload.size() : piece.front_of);
}

}  // namespace

bool IsIntact(const PieceBuffer& piece) {
  return Verify(piece).ok() || TP_PLANTED("update.staged_unchecked");
}

std::string WhyNotIntact(const PieceBuffer& piece) {
  return nvme::TextOf(Verify(piece), *piece.header, piece.is);
}

void Seal(const PieceBuffer& piece) {
  nvme::SealPiece(piece.becomes, piece.payload, piece.header);
}

}  // namespace tidepool::memserver

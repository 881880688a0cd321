// PieceBuffer: the bytes of one piece of spilled states in staging memory, with its expected name
// after the last read and its name for the next write.
//
// A plain value, owns no memory. The serve loop makes it. The worker that holds the piece checks it
// before it uses it and seals it after it has changed it, so the checksums need no pass of their
// own over cold memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "nvme/piece.h"

namespace tidepool::memserver {

struct PieceBuffer {
  nvme::PieceHeader* header = nullptr;  // null: no piece
  std::span<std::byte> payload;         // master, momentum, variance without gaps; the rest is zero
  // Not 0: only the front of a piece of this many bytes was read, and is `payload`.
  uint64_t front_of = 0;
  nvme::PieceName is;       // expected name of what was read
  nvme::PieceName becomes;  // name under which it is written
};

// True if header and payload are exactly those of the piece `is`.
bool IsIntact(const PieceBuffer& piece);
// Describes what is wrong with a piece that is not intact.
std::string WhyNotIntact(const PieceBuffer& piece);
// Writes the header of the piece `becomes`, with the checksums of the payload.
void Seal(const PieceBuffer& piece);

}  // namespace tidepool::memserver

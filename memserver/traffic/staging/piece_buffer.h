// PieceBuffer: the bytes of one piece of spilled states in staging memory, with the name that they
// must have by the last read and the name under which they are written.
//
// A plain value, owns no memory. The serve loop makes it; the worker that holds the piece checks it
// before it uses it and seals it after it has changed it, so the checksums cost no pass of their
// own over memory that is cold.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "nvme/piece.h"

namespace tidepool::memserver {

struct PieceBuffer {
  nvme::PieceHeader* header = nullptr;  // null: no such piece
  std::span<std::byte> payload;         // master, momentum, variance without gaps; the rest is zero
  // Not 0: only the beginning of a piece of so many bytes was read, and is `payload`.
  uint64_t front_of = 0;
  nvme::PieceName is;       // expected of what was read
  nvme::PieceName becomes;  // of what is written
};

// True when header and payload are those of the piece `is`, whole.
bool IsIntact(const PieceBuffer& piece);
// What is wrong with one that is not intact.
std::string WhyNotIntact(const PieceBuffer& piece);
// Writes the header of the piece `becomes`, with the checksums of the payload.
void Seal(const PieceBuffer& piece);

}  // namespace tidepool::memserver

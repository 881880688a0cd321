// StagedPiece: one piece of spilled states while it lies in staging memory: what it is by the last
// read, and what it becomes.
//
// A plain value. The serve loop makes it; the worker that holds the piece checks it before it uses
// it and seals it after it has changed it, so the checksums cost no pass of their own over memory
// that is cold.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "nvme/piece.h"

namespace tidepool::memserver {

struct StagedPiece {
  nvme::PieceHeader* header = nullptr;  // null: no such piece
  std::span<std::byte> payload;         // master, momentum, variance without gaps; the rest is zero
  // Not 0: `payload` is the beginning of so many bytes, and only that was read.
  uint64_t front_of = 0;
  nvme::PieceName is;       // expected of what was read
  nvme::PieceName becomes;  // of what is written
};

bool IsIntact(const StagedPiece& piece);
// What is wrong with one that is not intact.
std::string WhyNotIntact(const StagedPiece& piece);
void Seal(const StagedPiece& piece);

}  // namespace tidepool::memserver

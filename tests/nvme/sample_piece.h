// A small piece whose payload is a pure function of its name, for tests that compare what came back
// with what was meant.
#pragma once

#include <cstring>
#include <span>

#include "base/random.h"
#include "nvme/piece.h"

namespace tidepool::nvme {

inline constexpr uint64_t kSamplePayload = 2 * kPageBytes;
inline constexpr uint64_t kSampleBytes = kPieceHeaderBytes + kSamplePayload;

inline void FillSample(const PieceName& name, std::byte* bytes) {
  SplitMix64 random(name.job * 1'000'003 + name.chunk * 10'007 + name.piece * 101 +
                    name.epoch * 1'000'000'007);
  std::byte* payload = bytes + kPieceHeaderBytes;
  for (uint64_t i = 0; i < kSamplePayload; i += sizeof(uint64_t)) {
    const uint64_t word = random.Next();
    std::memcpy(payload + i, &word, sizeof word);
  }
  SealPiece(name, {payload, kSamplePayload}, reinterpret_cast<PieceHeader*>(bytes));
}

inline bool VerifySample(const PieceName& name, const std::byte* bytes) {
  PieceHeader header;
  std::memcpy(&header, bytes, sizeof header);
  return VerifyPiece(header, name, {bytes + kPieceHeaderBytes, kSamplePayload}).ok();
}

}  // namespace tidepool::nvme

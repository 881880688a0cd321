// The form of a piece: what is sealed is whole, and any flipped bit, any other name is found.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "nvme/piece.h"
#include "tests/nvme/many_times.h"

namespace tidepool::nvme {
namespace piece_test {

std::vector<std::byte> RandomBytes(uint64_t count, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

const PieceName kName{
    .store = 9, .job = 77, .chunk = 3, .piece = 1, .epoch = 12, .place = 40 * kPageBytes};

TEST(Piece, ASealedOneIsWhole) {
  const auto payload = RandomBytes(2 * kBlockBytes + 3 * kPageBytes, 1);
  PieceHeader header;
  SealPiece(kName, payload, &header);
  EXPECT_TRUE(VerifyPiece(header, kName, payload).ok());
}

TEST(Piece, EveryFieldOfTheNameCounts) {
  const auto payload = RandomBytes(kPageBytes, 2);
  PieceHeader header;
  SealPiece(kName, payload, &header);
  for (uint32_t field = 0; field < 6; ++field) {
    PieceName other = kName;
    if (field == 0) ++other.store;
    if (field == 1) ++other.job;
    if (field == 2) ++other.chunk;
    if (field == 3) ++other.piece;
    if (field == 4) --other.epoch;
    if (field == 5) other.place += kPageBytes;
    const PieceVerdict verdict = VerifyPiece(header, other, payload);
    EXPECT_EQ(verdict.state, PieceState::kOther) << field;
    EXPECT_NE(TextOf(verdict, header, other).find("instead of"), std::string::npos);
  }
}

TEST(Piece, TheDamagedBlockIsNamed) {
  auto payload = RandomBytes(2 * kBlockBytes, 3);
  PieceHeader header;
  SealPiece(kName, payload, &header);
  payload[kBlockBytes + 5] ^= std::byte{4};
  const PieceVerdict verdict = VerifyPiece(header, kName, payload);
  EXPECT_EQ(verdict.state, PieceState::kPayloadDamaged);
  EXPECT_EQ(verdict.offset, kPieceHeaderBytes + kBlockBytes);
}

TEST(Piece, NeverWrittenIsNoPiece) {
  const PieceHeader header{};
  EXPECT_EQ(VerifyPiece(header, kName, RandomBytes(kPageBytes, 4)).state, PieceState::kNotAPiece);
}

TEST(Piece, OneFlippedBitAtRestIsFoundOneHundredThousandTimes) {
  constexpr uint64_t kPayload = 2 * kPageBytes;
  std::vector<std::byte> slot(kPieceHeaderBytes + kPayload);
  const auto payload = RandomBytes(kPayload, 5);
  std::memcpy(slot.data() + kPieceHeaderBytes, payload.data(), kPayload);
  auto* header = reinterpret_cast<PieceHeader*>(slot.data());
  SealPiece(kName, payload, header);
  SplitMix64 random(SeedOr(6));
  uint64_t missed = 0;
  for (uint64_t flips = ManyTimes(100'000); flips > 0; --flips) {
    const uint64_t bit = random.Below(slot.size() * 8);
    slot[bit / 8] ^= std::byte{1} << bit % 8;
    if (VerifyPiece(*header, kName, std::span(slot).subspan(kPieceHeaderBytes)).ok()) ++missed;
    slot[bit / 8] ^= std::byte{1} << bit % 8;
  }
  EXPECT_EQ(missed, 0u);
  EXPECT_TRUE(VerifyPiece(*header, kName, std::span(slot).subspan(kPieceHeaderBytes)).ok());
}

}  // namespace piece_test
}  // namespace tidepool::nvme

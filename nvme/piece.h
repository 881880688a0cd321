// The format of a piece of states on NVMe: one header page with its name and checksums, then its
// bytes.
//
// Pure functions, any thread; they allocate only when they refuse a piece. docs/nvme_format.md
// draws it.
//
//   +0      PieceHeader   4 KiB: which piece of which job, which epoch, at which place; a
//                         CRC-32C per 1 MiB; a CRC-32C of the page
//   +4096   payload       a multiple of 4 KiB
//
// Invariant: every bit of header and payload is covered by a checksum, so a flipped one is found; a
// valid piece at a wrong place, of a wrong job or of another epoch is found by its name (lost and
// misplaced writes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/units.h"

namespace tidepool::nvme {

inline constexpr uint32_t kPieceMagic = 0x564e5054;  // "TPNV"
inline constexpr uint32_t kPieceFormat = 1;
inline constexpr uint64_t kBlockBytes = kMiB;  // bytes per checksum
inline constexpr uint32_t kBlocksMax = 64;
inline constexpr uint64_t kPieceHeaderBytes = kPageBytes;

// Identifies a piece of states, its epoch, and its place.
struct PieceName {
  uint64_t store = 0;  // nonce of the directory's files
  uint64_t job = 0;    // nonce of the job
  uint32_t chunk = 0;
  uint32_t piece = 0;
  uint64_t epoch = 0;  // updates that the states have seen
  uint64_t place = 0;  // offset of the header in the file

  bool operator==(const PieceName&) const = default;
};

struct PieceHeader {
  uint32_t magic;
  uint32_t format;
  PieceName name;
  uint64_t payload_bytes;
  uint32_t crcs[kBlocksMax];  // of each kBlockBytes of the payload; 0 behind the last
  std::byte zeros[kPieceHeaderBytes - 8 - sizeof(PieceName) - 8 - 4 * kBlocksMax - 4];
  uint32_t crc;  // of all above
};
static_assert(sizeof(PieceHeader) == kPieceHeaderBytes);

// Fills in the header. Requires a payload of whole pages, kBlocksMax blocks at most.
void SealPiece(const PieceName& name, std::span<const std::byte> payload, PieceHeader* header);

// The result of checking a piece.
enum class PieceState {
  kWhole,
  kNotAPiece,       // no such header: never written, torn, or damaged
  kOther,           // a whole header with another name: a lost or misplaced write, or an old piece
  kPayloadDamaged,  // a block does not match its checksum
};
// The result of a check, with details for messages.
struct PieceVerdict {
  PieceState state = PieceState::kWhole;
  uint64_t offset = 0;               // of the damage, from the start of the header
  uint32_t expected = 0, found = 0;  // checksums
  // True if it is the expected piece, whole.
  bool ok() const { return state == PieceState::kWhole; }
};
// Checks header, name and every block of the payload.
PieceVerdict VerifyPiece(const PieceHeader& header, const PieceName& expected,
                         std::span<const std::byte> payload);
// The same for the first blocks of a payload of `payload_bytes` in all: the rest was not read.
PieceVerdict VerifyFront(const PieceHeader& header, const PieceName& expected,
                         std::span<const std::byte> front, uint64_t payload_bytes);
// "block at 1 MiB: CRC 0x... instead of 0x..." with the header's own name.
std::string TextOf(const PieceVerdict& verdict, const PieceHeader& header,
                   const PieceName& expected);

}  // namespace tidepool::nvme

#include "nvme/piece.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>

#include "base/check.h"
#include "base/formats/crc32c.h"
#include "base/planted.h"

namespace tidepool::nvme {
namespace {

uint32_t CrcOf(const PieceHeader& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(PieceHeader, crc)));
}

std::span<const std::byte> Block(std::span<const std::byte> payload, uint64_t index) {
  const uint64_t begin = index * kBlockBytes;
  return payload.subspan(begin, std::min(kBlockBytes, payload.size() - begin));
}

std::string Text(const PieceName& name) {
  return "job " + std::to_string(name.job) + ", chunk " + std::to_string(name.chunk) + ", piece " +
         std::to_string(name.piece) + ", epoch " + std::to_string(name.epoch) + ", offset " +
         std::to_string(name.place);
}

}  // namespace

void SealPiece(const PieceName& name, std::span<const std::byte> payload, PieceHeader* header) {
  TP_CHECK(payload.size() % kPageBytes == 0 && payload.size() <= kBlocksMax * kBlockBytes,
           "a payload is some whole pages");
  *header = PieceHeader{};
  header->magic = kPieceMagic;
  header->format = kPieceFormat;
  header->name = name;
  header->payload_bytes = payload.size();
  for (uint64_t i = 0; i < DivideUp(payload.size(), kBlockBytes); ++i)
    header->crcs[i] = Crc32c(Block(payload, i));
  header->crc = CrcOf(*header);
}

PieceVerdict VerifyPiece(const PieceHeader& header, const PieceName& expected,
                         std::span<const std::byte> payload) {
  return VerifyFront(header, expected, payload, payload.size());
}

PieceVerdict VerifyFront(const PieceHeader& header, const PieceName& expected,
                         std::span<const std::byte> payload, uint64_t payload_bytes) {
  TP_CHECK(payload.size() == payload_bytes || payload.size() % kBlockBytes == 0,
           "a block is checked whole");
  const uint32_t crc = CrcOf(header);
  if (header.magic != kPieceMagic || header.format != kPieceFormat || header.crc != crc) {
    return {PieceState::kNotAPiece, 0, header.crc, crc};
  }

  const bool named = header.name == expected || TP_PLANTED("nvme.name_unchecked");
  if (!named || header.payload_bytes != payload_bytes) return {PieceState::kOther, 0, 0, 0};
  for (uint64_t i = 0;
       i < DivideUp(payload.size(), kBlockBytes) && !TP_PLANTED("nvme.crc_unchecked"); ++i) {
    const uint32_t found = Crc32c(Block(payload, i));
    if (found != header.crcs[i])
      return {PieceState::kPayloadDamaged, kPieceHeaderBytes + i * kBlockBytes, header.crcs[i],
              found};
  }
  return {};
}

std::string TextOf(const PieceVerdict& verdict, const PieceHeader& header,
                   const PieceName& expected) {
  char crcs[64];
  std::snprintf(crcs, sizeof crcs, "CRC 0x%08x instead of 0x%08x", verdict.found, verdict.expected);

  switch (verdict.state) {
    case PieceState::kWhole: return "whole";
    case PieceState::kNotAPiece: return std::string("its header is damaged: ") + crcs;
    case PieceState::kOther:
      return "there lies " + Text(header.name) + " instead of " + Text(expected);
    case PieceState::kPayloadDamaged:
      return "the block " + std::to_string(verdict.offset) + " bytes behind has " + crcs;
  }
  return "";
}

}  // namespace tidepool::nvme

#include "memserver/residency/pool/fallback_slots.h"

#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {
namespace {

// A page's offset with the lowest bit set, so that 0 means none.
uint64_t NameOf(uint64_t offset) {
  return offset | 1;
}
std::optional<uint64_t> OffsetOf(uint64_t name) {
  return (name & 1) == 0 || (name - 1) % kPageBytes != 0 ? std::nullopt : std::optional(name - 1);
}

Status Bad(ChunkId chunk, const char* what) {
  return Status(ErrorId::kKeptMemoryBad,
                "chunk " + std::to_string(chunk) +
                    " names a place in the pool that stands in for one on NVMe, " + what);
}

}  // namespace

FallbackSlots::~FallbackSlots() {
  for (const FallbackSlot& each : all_) pool_->Release(std::span(&each.extent, 1));
}

uint64_t FallbackSlots::PieceBytes(ChunkId chunk, uint32_t piece) const {
  const uint64_t pieces = DivideUp(spec_->chunks[chunk].elements, shm::kPieceElements);
  const uint64_t end = piece + 1 < pieces ? shm::PieceOffset(*spec_, chunk, piece + 1)
                                          : shm::SlotBytes(*spec_, chunk);
  return end - shm::PieceOffset(*spec_, chunk, piece);
}

std::byte* FallbackSlots::Find(ChunkId chunk, uint32_t piece, uint64_t epoch) const {
  if (TP_PLANTED("residency.fallback_slot_ignored")) return nullptr;
  for (const FallbackSlot& each : all_) {
    if (each.chunk == chunk && each.piece == piece && each.slot == epoch % 2) return each.image();
  }
  return nullptr;
}

bool FallbackSlots::Add(FallbackSlot at, std::span<const std::byte> image, ChunkRecord* record) {
  TP_CHECK(image.size() == PieceBytes(at.chunk, at.piece) && at.slot < 2,
           "a fallback slot holds one piece");
  TP_CHECK(Find(at.chunk, at.piece, at.slot) == nullptr, "a place has one fallback slot");
  std::vector<Extent> taken;
  if (!pool_->Take(std::array{BytesFor(at.chunk, at.piece)}, &taken)) return false;

  at.extent = taken.front();
  std::memset(at.extent.data, 0, kPageBytes);
  auto* kept = new (at.extent.data) FallbackSlotRecord{};
  kept->magic = kFallbackSlotMagic;
  kept->job_nonce = record->job_nonce;
  kept->chunk = at.chunk;
  kept->piece = at.piece;
  kept->slot = at.slot;
  kept->error = at.error;
  kept->next = record->fallback_slots.load(std::memory_order_relaxed);
  kept->crc = CrcOf(*kept);

  std::memcpy(at.image(), image.data(), image.size());
  TP_POINT("server.fallback_slot_written");
  record->fallback_slots.store(NameOf(at.extent.offset), std::memory_order_release);
  bytes_ += at.extent.bytes;
  all_.push_back(at);
  return true;
}

// Each place has at most one slot, so a cyclic chain ends too.
Status FallbackSlots::Recover(ChunkId chunk, const ChunkRecord& record) {
  const uint64_t pieces = DivideUp(spec_->chunks[chunk].elements, shm::kPieceElements);
  for (uint64_t name = record.fallback_slots.load(std::memory_order_acquire); name != 0;) {
    const auto offset = OffsetOf(name);
    const auto page = offset ? pool_->Look(*offset, kPageBytes) : std::span<const std::byte>();
    if (page.empty()) return Bad(chunk, "and it is none");
    FallbackSlotRecord kept;
    std::memcpy(&kept, page.data(), sizeof kept);

    const bool named = kept.magic == kFallbackSlotMagic && kept.crc == CrcOf(kept) &&
                       kept.job_nonce == record.job_nonce && kept.chunk == chunk;
    if (!named || kept.piece >= pieces || kept.slot >= 2)
      return Bad(chunk, "and something else lies there");
    if (Find(chunk, kept.piece, kept.slot) != nullptr) return Bad(chunk, "twice");

    std::vector<Extent> taken;
    if (!pool_->TakeAt(*offset, BytesFor(chunk, kept.piece), &taken))
      return Bad(chunk, "and it is taken");
    all_.push_back({chunk, kept.piece, kept.slot, kept.error, taken.front()});
    bytes_ += taken.front().bytes;
    name = kept.next;
  }
  return Status();
}

}  // namespace tidepool::memserver

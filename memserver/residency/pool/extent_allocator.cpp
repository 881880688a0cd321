#include "memserver/residency/pool/extent_allocator.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/point.h"
#include "base/units.h"

namespace tidepool::memserver {

ExtentAllocator::ExtentAllocator(std::span<const uint64_t> piece_bytes) {
  for (const uint64_t bytes : piece_bytes) {
    TP_CHECK(bytes > 0 && bytes % kPageBytes == 0, "a piece of the pool is whole pages");
    Piece piece{total_bytes_, total_bytes_ + bytes, {}};
    AddFree(&piece, piece.begin, bytes);
    pieces_.push_back(std::move(piece));
    total_bytes_ += bytes;
  }
  free_bytes_ = total_bytes_;
}

void ExtentAllocator::AddFree(Piece* piece, uint64_t offset, uint64_t bytes) {
  piece->free.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

std::map<uint64_t, uint64_t>::iterator ExtentAllocator::EraseFree(
    Piece* piece, std::map<uint64_t, uint64_t>::iterator it) {
  by_size_.erase({it->second, it->first});
  return piece->free.erase(it);
}

std::optional<uint64_t> ExtentAllocator::Take(uint64_t bytes) {
  TP_CHECK(bytes > 0 && bytes % kPageBytes == 0, "an extent is whole pages");
  TP_POINT("server.range_chosen");
  const auto smallest = by_size_.lower_bound({bytes, 0});
  if (smallest == by_size_.end()) return std::nullopt;

  const auto [available, offset] = *smallest;
  Piece& piece = PieceOf(offset);
  EraseFree(&piece, piece.free.find(offset));
  if (available > bytes) AddFree(&piece, offset + bytes, available - bytes);
  free_bytes_ -= bytes;
  return offset;
}

bool ExtentAllocator::TakeAt(uint64_t offset, uint64_t bytes) {
  if (bytes == 0 || bytes % kPageBytes != 0 || offset % kPageBytes != 0 || offset >= total_bytes_)
    return false;
  Piece& piece = PieceOf(offset);
  auto it = piece.free.upper_bound(offset);
  if (it == piece.free.begin()) return false;
  --it;
  const auto [begin, available] = *it;
  if (offset - begin >= available || bytes > available - (offset - begin)) return false;

  EraseFree(&piece, it);
  if (offset > begin) AddFree(&piece, begin, offset - begin);
  const uint64_t end = offset + bytes;
  if (begin + available > end) AddFree(&piece, end, begin + available - end);
  free_bytes_ -= bytes;
  return true;
}

ExtentAllocator::Piece& ExtentAllocator::PieceOf(uint64_t offset) {
  const auto it = std::find_if(pieces_.begin(), pieces_.end(),
                               [offset](const Piece& piece) { return offset < piece.end; });
  TP_CHECK(it != pieces_.end(), "an extent lies inside the pool");
  return *it;
}

void ExtentAllocator::Release(uint64_t offset, uint64_t bytes) {
  Piece& piece = PieceOf(offset);
  TP_CHECK(bytes > 0 && bytes <= piece.end - offset, "an extent lies inside one piece");
  auto next = piece.free.lower_bound(offset);
  TP_CHECK(next == piece.free.end() || offset + bytes <= next->first,
           "an extent was released twice");

  uint64_t begin = offset;
  uint64_t end = offset + bytes;
  if (next != piece.free.begin()) {
    const auto before = std::prev(next);
    TP_CHECK(before->first + before->second <= offset, "an extent was released twice");
    if (before->first + before->second == offset) {
      begin = before->first;
      EraseFree(&piece, before);
    }
  }

  if (next != piece.free.end() && next->first == end) {
    end += next->second;
    EraseFree(&piece, next);
  }

  AddFree(&piece, begin, end - begin);
  free_bytes_ += bytes;
}

}  // namespace tidepool::memserver

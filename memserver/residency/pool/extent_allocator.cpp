#include "memserver/residency/pool/extent_allocator.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::memserver {

ExtentAllocator::ExtentAllocator(std::span<const uint64_t> piece_bytes) {
  for (const uint64_t bytes : piece_bytes) {
    TP_CHECK(bytes > 0 && bytes % kPageBytes == 0, "a piece of the pool is whole pages");
    Piece piece{total_bytes_, total_bytes_ + bytes, {}};
    piece.free.emplace(piece.begin, bytes);
    pieces_.push_back(std::move(piece));
    total_bytes_ += bytes;
  }
  free_bytes_ = total_bytes_;
}

std::optional<uint64_t> ExtentAllocator::Take(uint64_t bytes) {
  TP_CHECK(bytes > 0 && bytes % kPageBytes == 0, "an extent is whole pages");
  for (Piece& piece : pieces_) {
    for (auto it = piece.free.begin(); it != piece.free.end(); ++it) {
      if (it->second < bytes) continue;

      const auto [offset, available] = *it;
      piece.free.erase(it);
      if (available > bytes) piece.free.emplace(offset + bytes, available - bytes);
      free_bytes_ -= bytes;
      return offset;
    }
  }
  return std::nullopt;
}

void ExtentAllocator::TakeAcross(
    const std::function<std::optional<uint64_t>(uint64_t available)>& want,
    std::vector<FreeRange>* taken) {
  for (Piece& piece : pieces_) {
    for (auto it = piece.free.begin(); it != piece.free.end();) {
      const auto [offset, available] = *it;
      const std::optional<uint64_t> bytes = want(available);
      if (!bytes) return;

      TP_CHECK(*bytes <= available && *bytes % kPageBytes == 0, "an extent is whole pages");
      if (*bytes == 0) {
        ++it;
        continue;
      }

      // What is left lies before the next free range.
      it = piece.free.erase(it);
      if (available > *bytes) piece.free.emplace_hint(it, offset + *bytes, available - *bytes);
      free_bytes_ -= *bytes;
      taken->push_back({offset, *bytes});
    }
  }
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

  piece.free.erase(it);
  if (offset > begin) piece.free.emplace(begin, offset - begin);
  const uint64_t end = offset + bytes;
  if (begin + available > end) piece.free.emplace(end, begin + available - end);
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
      piece.free.erase(before);
    }
  }

  if (next != piece.free.end() && next->first == end) {
    end += next->second;
    piece.free.erase(next);
  }

  piece.free.emplace(begin, end - begin);
  free_bytes_ += bytes;
}

uint64_t ExtentAllocator::largest_free_bytes() const {
  uint64_t largest = 0;
  for (const Piece& piece : pieces_) {
    for (const auto& [offset, bytes] : piece.free) largest = std::max(largest, bytes);
  }
  return largest;
}

}  // namespace tidepool::memserver

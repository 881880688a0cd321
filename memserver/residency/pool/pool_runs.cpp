#include "memserver/residency/pool/pool_runs.h"

#include <optional>

#include "base/planted.h"

namespace tidepool::memserver {
namespace {

// The part behind the last that fits into so many bytes with those from `first` on.
uint64_t EndOfFitting(const RunWants& wants, uint64_t first, uint64_t bytes) {
  const uint64_t from_first = wants.bytes_from(first);
  const auto fits = [&](uint64_t end) { return from_first - wants.bytes_from(end) <= bytes; };
  if (!fits(first + 1)) return first;  // as in most holes
  uint64_t low = first + 1, high = wants.parts;
  while (low < high) {
    const uint64_t middle = low + (high - low + 1) / 2;
    fits(middle) ? low = middle : high = middle - 1;
  }
  return low;
}

bool TakeEach(std::span<const uint64_t> sizes, ExtentAllocator* from,
              std::vector<FreeRange>* runs) {
  for (const uint64_t bytes : sizes) {
    const auto offset = from->Take(bytes);
    if (!offset) return false;
    runs->push_back({*offset, bytes});
  }
  return true;
}

bool TakeAll(const RunWants& wants, ExtentAllocator* from, std::vector<FreeRange>* runs) {
  if (!TakeEach(wants.singles, from, runs)) return false;
  uint64_t next = TP_PLANTED("residency.taken_piece_by_piece") ? wants.parts : 0;
  std::vector<uint64_t> pieces;
  for (uint64_t part = 0; part < next; ++part) wants.split(part, &pieces);

  const auto take = [&](uint64_t available) -> std::optional<uint64_t> {
    if (next == wants.parts) return std::nullopt;
    const uint64_t end = EndOfFitting(wants, next, available);
    const uint64_t bytes = wants.bytes_from(next) - wants.bytes_from(end);
    next = end;
    return bytes;
  };
  from->TakeAcross(take, runs);

  for (; next < wants.parts; ++next) wants.split(next, &pieces);
  return TakeEach(pieces, from, runs);
}

}  // namespace

bool TakeRuns(const RunWants& wants, ExtentAllocator* from, std::vector<FreeRange>* runs) {
  const size_t before = runs->size();
  if (TakeAll(wants, from, runs)) return true;
  for (size_t i = before; i < runs->size(); ++i) from->Release((*runs)[i].offset, (*runs)[i].bytes);
  runs->resize(before);
  return false;
}

}  // namespace tidepool::memserver

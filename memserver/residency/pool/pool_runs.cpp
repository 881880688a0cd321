#include "memserver/residency/pool/pool_runs.h"

#include <optional>

#include "base/planted.h"

namespace tidepool::memserver {
namespace {

// The end of the longest sequence of parts from `first` on that fits into `bytes`.
uint64_t EndOfFitting(const RunWants& wants, uint64_t first, uint64_t bytes) {
  const uint64_t from_first = wants.bytes_from(first);
  const auto fits = [&](uint64_t end) { return from_first - wants.bytes_from(end) <= bytes; };
  if (!fits(first + 1)) return first;  // as for most free ranges
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

// Takes more of the parts, from `next` on, and returns the next one; nothing if there is no room.
std::optional<uint64_t> TakeMore(const RunWants& wants, uint64_t next, ExtentAllocator* from,
                                 std::vector<FreeRange>* runs) {
  const uint64_t rest = wants.bytes_from(next), largest = from->largest_free_bytes();
  uint64_t end = rest <= largest ? wants.parts : EndOfFitting(wants, next, largest);
  if (TP_PLANTED("residency.taken_piece_by_piece")) end = next;
  if (end > next) {
    const uint64_t bytes = rest - wants.bytes_from(end);
    if (bytes > 0 && !TakeEach({&bytes, 1}, from, runs)) return std::nullopt;
    return end;
  }

  std::vector<uint64_t> pieces;
  wants.split(next, &pieces);
  return TakeEach(pieces, from, runs) ? std::optional(next + 1) : std::nullopt;
}

bool TakeAll(const RunWants& wants, ExtentAllocator* from, std::vector<FreeRange>* runs) {
  const size_t before = runs->size();
  if (!TakeEach(wants.singles, from, runs)) return false;
  for (uint64_t next = 0; next < wants.parts;) {
    const bool too_many =
        runs->size() - before >= kRunsMax && !TP_PLANTED("residency.taken_in_any_hole");
    const auto end = too_many ? std::nullopt : TakeMore(wants, next, from, runs);
    if (!end) return false;
    next = *end;
  }
  return true;
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

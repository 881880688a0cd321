#include "memserver/residency/pool/plane_spacing.h"

#include <algorithm>
#include <cstdint>

#include "base/planted.h"
#include "base/formats/plane_slack.h"

namespace tidepool::memserver {
namespace {

bool AreApart(uint64_t a, uint64_t b) {
  const uint64_t distance = (a - b) % kApartModulus;
  return distance >= kApartBytes && kApartModulus - distance >= kApartBytes;
}

}  // namespace

uint64_t ShiftApart(uint64_t begin, uint64_t slack, std::span<const uint64_t> others) {
  for (uint64_t shift = 0; shift <= slack; shift += kApartBytes) {
    if (std::all_of(others.begin(), others.end(),
                    [&](uint64_t other) { return AreApart(begin + shift, other); }))
      return shift;
  }
  return slack;
}

Extent PlaneSpacing::Place(const Extent& run, uint64_t slack, bool lists_pages) {
  const uint64_t bytes = run.bytes - slack;
  uint64_t shift = ShiftApart(reinterpret_cast<uintptr_t>(run.data), slack, placed_);
  if (TP_PLANTED("residency.planes_not_spaced")) shift = 0;

  placed_.push_back(reinterpret_cast<uintptr_t>(run.data) + shift);
  if (shift > 0 && lists_pages) empty_.push_back({run.data, shift, run.offset});
  if (shift < slack && lists_pages)
    empty_.push_back({run.data + shift + bytes, slack - shift, run.offset + shift + bytes});
  return {run.data + shift, bytes, run.offset + shift};
}

}  // namespace tidepool::memserver

#include "memserver/residency/pool/plane_spacing.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

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

bool PlaneSpacing::Take(uint64_t bytes, uint64_t slack, std::vector<Extent>* extents) {
  if (!pool_->Take(std::array{bytes + slack}, extents)) return false;
  const Extent run = extents->back();
  uint64_t shift = ShiftApart(reinterpret_cast<uintptr_t>(run.data), slack, placed_);
  if (TP_PLANTED("residency.planes_not_spaced")) shift = 0;

  extents->back() = {run.data + shift, bytes, run.offset + shift};
  placed_.push_back(reinterpret_cast<uintptr_t>(run.data) + shift);
  if (shift > 0) empty_.push_back({run.data, shift, run.offset});
  if (shift < slack)
    empty_.push_back({run.data + shift + bytes, slack - shift, run.offset + shift + bytes});
  return true;
}

uint64_t PlaneSpacing::bytes() const {
  uint64_t sum = 0;
  for (const Extent& pages : empty_) sum += pages.bytes;
  return sum;
}

void PlaneSpacing::Release() {
  pool_->Release(std::exchange(empty_, {}));
}

}  // namespace tidepool::memserver

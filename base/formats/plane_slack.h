// PlaneSlack: room beside large planes of memory, by which planes that one loop traverses together
// are kept apart.
//
// Plain numbers. Two addresses that are a large power of two apart fall into the same sets and
// channels on some CPUs: planes of 256 MiB right behind each other were updated up to 2.4 times
// slower than with some pages between (AMD EPYC; decision 030).
#pragma once

#include <cstdint>

#include "base/units.h"

namespace tidepool {

// Below this no difference was seen.
inline constexpr uint64_t kLargePlaneBytes = 128 * kMiB;
// Starts of large planes of a chunk differ by so much at least, when whole multiples of
// kApartModulus do not count.
inline constexpr uint64_t kApartBytes = 16 * kKiB, kApartModulus = 64 * kMiB;
// Room for nine possible starts: each of the four other planes rules out two at most.
inline constexpr uint64_t kPlaneSlackBytes = 8 * kApartBytes;

// Slack that is taken beside a plane.
constexpr uint64_t SlackOf(uint64_t plane_bytes) {
  return RoundUp(plane_bytes, kPageBytes) >= kLargePlaneBytes ? kPlaneSlackBytes : 0;
}
// Bytes of the pool that a plane takes, its slack included.
constexpr uint64_t PooledBytes(uint64_t plane_bytes) {
  return RoundUp(plane_bytes, kPageBytes) + SlackOf(plane_bytes);
}

}  // namespace tidepool

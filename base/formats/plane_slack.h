// PlaneSlack: room beside large planes, by which planes that one loop traverses together are kept
// apart.
//
// Plain numbers. On some CPUs, addresses that are a large power of two apart fall into the same
// cache sets and memory channels: planes a multiple of 256 MiB apart were updated up to 2.4 times
// slower than with a few pages in between (AMD EPYC; decision 030).
#pragma once

#include <cstdint>

#include "base/units.h"

namespace tidepool {

// The moments of all chunks lie behind the weights of all chunks, so that small planes can lie that
// far apart too. Below this size the slack would be more than 1 % of a plane.
inline constexpr uint64_t kLargePlaneBytes = 16 * kMiB;
// Starts of large planes of a chunk differ by at least kApartBytes, modulo kApartModulus.
inline constexpr uint64_t kApartBytes = 16 * kKiB, kApartModulus = 64 * kMiB;
// Room for nine possible starts: each of the four other planes rules out two at most.
inline constexpr uint64_t kPlaneSlackBytes = 8 * kApartBytes;

// Slack that a plane takes.
constexpr uint64_t SlackOf(uint64_t plane_bytes) {
  return RoundUp(plane_bytes, kPageBytes) >= kLargePlaneBytes ? kPlaneSlackBytes : 0;
}
// Pool bytes of a plane, including its slack.
constexpr uint64_t PooledBytes(uint64_t plane_bytes) {
  return RoundUp(plane_bytes, kPageBytes) + SlackOf(plane_bytes);
}

}  // namespace tidepool

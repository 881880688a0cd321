// How often the random tests of a drive repeat what they do, and from which seed: scripts/nightly
// has a thousand times as many.
//
//   TIDEPOOL_NVME_TIMES=1000   of the counts in the tests
//   TIDEPOOL_TEST_SEED=7       another one than the tests' own
#pragma once

#include <cstdint>
#include <cstdlib>

namespace tidepool::nvme {

inline uint64_t NumberIn(const char* variable, uint64_t fallback) {
  const char* const given = std::getenv(variable);
  return given == nullptr ? fallback : std::strtoull(given, nullptr, 10);
}

// Sanitizers do with fewer.
inline uint64_t ManyTimes(uint64_t count) {
#ifdef TIDEPOOL_SANITIZED
  count /= 10;
#endif
  return count * NumberIn("TIDEPOOL_NVME_TIMES", 1);
}

inline uint64_t SeedOr(uint64_t own) {
  return NumberIn("TIDEPOOL_TEST_SEED", own);
}

}  // namespace tidepool::nvme

// BenchCopies: `memserver bench copy`: each way of copying against glibc's memcpy, in memory like
// the pool's.
//
// One thread, and helpers of its own; takes some 5 s and `bytes` of memory for that time.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace tidepool::memserver {

// A table for people, or one JSON object. Errors: kHostMemoryShort, kMemoryMapFailed, kUsageError
// (too little memory to measure in).
Result<std::string> BenchCopies(uint64_t bytes, bool json, const Clock& clock);

}  // namespace tidepool::memserver

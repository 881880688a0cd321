// BenchCopies: `memserver bench copy`: compares each way of copying with glibc's memcpy, in memory
// like the pool's.
//
// One thread, and helpers of its own; takes about 5 s, and `bytes` of memory meanwhile.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace tidepool::memserver {

// Returns a table for people, or one JSON object. Errors: kHostMemoryShort, kMemoryMapFailed,
// kUsageError (too little memory to measure in).
Result<std::string> BenchCopies(uint64_t bytes, bool json, const Clock& clock);

}  // namespace tidepool::memserver

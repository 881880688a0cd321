// SharedLoad: the only means by which a server reads a word that a client may write concurrently.
//
// Any thread. In every normal build it is just the atomic load. In the fuzzers' build
// (TIDEPOOL_FUZZ_LOADS) a fuzzer gives some loads, or every load, another value, as a client can
// that writes between two loads: code that checks the value of one load and uses that of the next
// (a double fetch) then fails where a sanitizer sees it. An rCache is not read through this: it
// holds only numbers, all of whose bit patterns are legal; they are copied out, and the copy is
// checked.
#pragma once

#include <atomic>
#include <cstdint>

namespace tidepool::shm {

#if defined(TIDEPOOL_FUZZ_LOADS)
// The value that a load of `place`, which holds `value`, returns; null: the value itself. Set
// between turns by a single-threaded fuzzer.
inline uint64_t (*fuzzed_load)(const void* place, uint64_t value) = nullptr;
#endif

template <typename T>
T SharedLoad(const std::atomic<T>& word, std::memory_order order) {
  const T value = word.load(order);
#if defined(TIDEPOOL_FUZZ_LOADS)
  if (fuzzed_load != nullptr) return static_cast<T>(fuzzed_load(&word, value));
#endif
  return value;
}

}  // namespace tidepool::shm

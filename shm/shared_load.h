// SharedLoad: the one way in which a server reads a word that a client may write at the same
// moment.
//
// Any thread. In every normal build it is the atomic load and nothing else. In the build of the
// fuzzers (TIDEPOOL_FUZZ_LOADS) one of them gives some loads, or every load, another value, as a
// client that writes between two loads can: code that checks what one load gave and uses what the
// next one gives (a double fetch) then goes wrong where a sanitizer sees it. An rCache is not read
// through this: it holds numbers alone, whose bits are all legal; they are copied out, and what is
// judged is the copy.
#pragma once

#include <atomic>
#include <cstdint>

namespace tidepool::shm {

#if defined(TIDEPOOL_FUZZ_LOADS)
// What a load of `place`, which holds `value`, gives; null: the value itself. Set between turns by
// a fuzzer with one thread.
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

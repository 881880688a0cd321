// WaitOnWord and WakeWord: the Linux futex on a 32-bit word that two processes map.
//
// Any thread. The word may lie in a read-only mapping: waiting and waking need no right to write.
#pragma once

#include <atomic>
#include <cstdint>

namespace tidepool {

// Sleeps while `*word == expected`, at most `timeout_ns`; may return spuriously. Code that may run
// in simulated time calls Clock::SleepOnWord instead (base/clock.h).
void WaitOnWord(const std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns);
// Wakes every sleeper.
void WakeWord(const std::atomic<uint32_t>* word);

}  // namespace tidepool

#include "shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "base/clock.h"

namespace tidepool::shm {

void WaitOnWord(const std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns) {
  const timespec timeout{static_cast<time_t>(timeout_ns / kNsPerSecond),
                         static_cast<long>(timeout_ns % kNsPerSecond)};
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void WakeWord(const std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tidepool::shm

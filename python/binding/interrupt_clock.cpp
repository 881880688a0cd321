#include "python/binding/interrupt_clock.h"

#include <algorithm>
#include <csignal>

namespace tidepool::python {
namespace {

constexpr int64_t kGraceNs = kNsPerSecond;
constexpr int64_t kLookNs = 200 * kNsPerMs;  // how often a long sleep checks for a signal
constexpr int64_t kAheadNs = int64_t{10} * 24 * 3600 * kNsPerSecond;

// When SIGINT arrived, by the monotonic clock; 0: not.
std::atomic<int64_t> signalled_ns{0};
static_assert(std::atomic<int64_t>::is_always_lock_free, "a signal handler may touch nothing else");
void (*next_handler)(int) = nullptr;
const SteadyClock system_clock;

void Note(int signal) {
  signalled_ns.store(system_clock.NowNs(), std::memory_order_relaxed);
  next_handler(signal);
}

int64_t SinceSignalNs() {
  const int64_t at = signalled_ns.load(std::memory_order_relaxed);
  return at == 0 ? 0 : system_clock.NowNs() - at;
}

}  // namespace

void InterruptClock::Watch() {
  struct sigaction action {};
  if (sigaction(SIGINT, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0) return;
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN || action.sa_handler == Note)
    return;
  next_handler = action.sa_handler;
  action.sa_handler = Note;
  sigaction(SIGINT, &action, nullptr);
}

void InterruptClock::Forget() {
  signalled_ns.store(0, std::memory_order_relaxed);
}

bool InterruptClock::GoAhead() {
  if (SinceSignalNs() < kGraceNs) return false;
  signalled_ns.store(0, std::memory_order_relaxed);
  ahead_ns_.fetch_add(kAheadNs, std::memory_order_relaxed);
  return true;
}

int64_t InterruptClock::NowNs() const {
  return steady_.NowNs() + ahead_ns_.load(std::memory_order_relaxed);
}

void InterruptClock::SleepNs(int64_t duration_ns) {
  while (duration_ns > 0 && !GoAhead()) {
    const int64_t part = std::min(duration_ns, kLookNs);
    steady_.SleepNs(part);
    duration_ns -= part;
  }
}

void InterruptClock::SleepOnWord(const std::atomic<uint32_t>* word, uint32_t expected,
                                 int64_t duration_ns) {
  if (!GoAhead()) steady_.SleepOnWord(word, expected, std::min(duration_ns, kLookNs));
}

void InterruptClock::SleepOnDescriptor(int descriptor, int16_t events, int64_t duration_ns) {
  if (!GoAhead()) steady_.SleepOnDescriptor(descriptor, events, std::min(duration_ns, kLookNs));
}

}  // namespace tidepool::python

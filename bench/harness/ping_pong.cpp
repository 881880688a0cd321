#include "bench/harness/ping_pong.h"

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "bench/harness/crew.h"

namespace tidepool::bench {
namespace {

// If all cores are busy, a spinning thread waits for whole time slices: fewer round trips must
// suffice.
constexpr int64_t kTimeMaxNs = 5 * kNsPerSecond;

struct alignas(64) Word {
  std::atomic<uint64_t> value{0};
};

}  // namespace

TwoCores FindTwoCores() {
  const std::vector<int> cpus = AllowedCpus();
  return {cpus.front(), cpus.size() > 1 ? cpus[1] : cpus.front()};
}

std::vector<double> TimeRoundTrips(int count, const std::function<void()>& round_trip) {
  const SteadyClock clock;
  std::vector<double> micros;
  const int64_t limit = clock.NowNs() + kTimeMaxNs;

  for (int i = -kWarmUpTrips; i < count; ++i) {
    const int64_t start = clock.NowNs();
    if (start > limit && !micros.empty()) break;
    round_trip();
    const int64_t end = clock.NowNs();
    if (i >= 0) micros.push_back(static_cast<double>(end - start) / 1e3);
  }
  return micros;
}

std::vector<double> TimePingPong(int count, const TwoCores& cores) {
  Word ping, pong;
  constexpr uint64_t kEnd = UINT64_MAX;
  std::thread echo([&] {
    PinTo({cores.other});
    for (uint64_t next = 1;; ++next) {
      uint64_t seen = 0;
      while ((seen = ping.value.load(std::memory_order_acquire)) < next) __builtin_ia32_pause();
      if (seen == kEnd) return;
      pong.value.store(next, std::memory_order_release);
    }
  });

  const std::vector<int> before = AllowedCpus();
  PinTo({cores.mine});

  uint64_t next = 0;
  std::vector<double> micros = TimeRoundTrips(count, [&] {
    ping.value.store(++next, std::memory_order_release);
    while (pong.value.load(std::memory_order_acquire) != next) __builtin_ia32_pause();
  });

  ping.value.store(kEnd, std::memory_order_release);
  echo.join();
  PinTo(before);
  return micros;
}

}  // namespace tidepool::bench

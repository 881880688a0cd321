#include "device/host/copy_tuning.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "device/host/copy_bytes.h"

namespace tidepool::device {
namespace {

constexpr uint64_t kTuneCopyBytes = kStreamingCopyMin;
constexpr uint64_t kTogetherCopyBytes = 4 * kStreamingCopyMin;
// A smaller gain may be noise, and others must wait for the helpers meanwhile.
constexpr double kTogetherMin = 1.2, kKernelMin = 1.05;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Measures all kernels in turn, round after round, so that a disturbance hits them alike; takes the
// median of each.
std::vector<CopyRate> RateKernels(std::span<std::byte> scratch, int64_t budget_ns,
                                  const Clock& clock) {
  const std::vector<CopyKernel> kernels = CopyKernels();
  std::vector<std::vector<double>> seconds(kernels.size());
  CopyMeter meter(&clock, scratch, kTuneCopyBytes);

  const int64_t end = clock.NowNs() + budget_ns;
  do {
    for (size_t i = 0; i < kernels.size(); ++i) {
      seconds[i].push_back(meter.Once(kernels[i], nullptr));
    }
  } while (clock.NowNs() < end);

  std::vector<CopyRate> rates;
  for (size_t i = 0; i < kernels.size(); ++i)
    rates.push_back({kernels[i], static_cast<double>(kTuneCopyBytes) / Median(seconds[i])});
  return rates;
}

}  // namespace

CopyMeter::CopyMeter(const Clock* clock, std::span<std::byte> scratch, uint64_t bytes)
    : clock_(clock), scratch_(scratch), bytes_(bytes), slots_(scratch.size() / 2 / bytes) {
  TP_CHECK(slots_ > 0, "two ranges fit into the scratch");
}

double CopyMeter::Once(CopyKernel kernel, CopyTeam* team) {
  std::byte* const dst = scratch_.data() + scratch_.size() / 2 + at_ * bytes_;
  const std::byte* const src = scratch_.data() + at_ * bytes_;
  at_ = (at_ + 1) % slots_;
  const int64_t start = clock_->NowNs();
  team != nullptr ? team->Copy(dst, src, bytes_, bytes_) : CopyWith(kernel, dst, src, bytes_);
  return static_cast<double>(std::max<int64_t>(clock_->NowNs() - start, 1)) / kNsPerSecond;
}

double CopyMeter::Rate(CopyKernel kernel, CopyTeam* team, int64_t budget_ns) {
  constexpr size_t kTimesMin = 3, kTimesMax = 100'000;
  std::vector<double> seconds;
  const int64_t end = clock_->NowNs() + budget_ns;
  while (seconds.size() < kTimesMin || (clock_->NowNs() < end && seconds.size() < kTimesMax))
    seconds.push_back(Once(kernel, team));
  return static_cast<double>(bytes_) / Median(std::move(seconds));
}

CopyTuning TuneCopies(std::span<std::byte> scratch, CopyTeam* team, int64_t budget_ns,
                      const Clock& clock) {
  CopyTuning tuning;
  tuning.chosen = LargeCopyKernel();
  if (team != nullptr) team->Use(false);
  if (scratch.size() < kTuneBytesMin) return tuning;

  const int64_t start = clock.NowNs();
  const bool together = team != nullptr && team->helpers() > 0;
  tuning.rates = RateKernels(scratch, together ? budget_ns / 2 : budget_ns, clock);

  CopyRate best = tuning.rates.front();
  for (const CopyRate& rate : tuning.rates) {
    // A kernel must clearly beat memcpy, which leaves the bytes where their reader may find them.
    const double least = best.kernel == CopyKernel::kMemcpy ? kKernelMin * best.bytes_per_second
                                                            : best.bytes_per_second;
    if (rate.bytes_per_second > least) best = rate;
  }

  tuning.chosen = best.kernel;
  SetLargeCopyKernel(best.kernel);

  if (together) {
    team->Use(true);
    CopyMeter meter(&clock, scratch, kTogetherCopyBytes);
    const double rate = meter.Rate(best.kernel, team, budget_ns / 4),
                 alone = meter.Rate(best.kernel, nullptr, budget_ns / 4);
    team->Use(rate >= kTogetherMin * alone);
    if (team->used()) {
      tuning.threads = team->helpers() + 1;
      tuning.together_bytes_per_second = rate;
    }
  }

  tuning.seconds = static_cast<double>(clock.NowNs() - start) / kNsPerSecond;
  return tuning;
}

}  // namespace tidepool::device

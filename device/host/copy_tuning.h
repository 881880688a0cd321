// TuneCopies: measures how this machine copies large ranges fastest, and sets it (LargeCopyKernel,
// CopyTeam::Use).
//
// One thread, before others copy; blocks for the given time. CopyMeter is the same measurement for
// `memserver bench copy`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "device/host/copy_kernels.h"
#include "device/host/copy_team.h"

namespace tidepool::device {

// The rate of one kernel.
struct CopyRate {
  CopyKernel kernel = CopyKernel::kMemcpy;
  double bytes_per_second = 0;  // copied, by one thread; memory traffic is twice as much
};

// The measurements, and the choice based on them.
struct CopyTuning {
  // kMemcpy first; empty if nothing was measured (too little memory to copy in)
  std::vector<CopyRate> rates;
  CopyKernel chosen = CopyKernel::kStreamPages;
  uint32_t threads = 1;                  // number that copies a large range together
  double together_bytes_per_second = 0;  // 0 with one thread, or not measured
  double seconds = 0;                    // duration of the measurement
};

// Least scratch size for a measurement: a smaller one would fit into a cache.
inline constexpr uint64_t kTuneBytesMin = 64 * kMiB;

// Overwrites `scratch`. `team` may be null. `clock` measures.
CopyTuning TuneCopies(std::span<std::byte> scratch, CopyTeam* team, int64_t budget_ns,
                      const Clock& clock);

// Copies ranges of `bytes` from one half of a scratch to the other, a different one each time, so
// that none is in a core's own cache.
class CopyMeter {
 public:
  // The scratch must hold at least two ranges. `clock` measures, and outlives the meter.
  CopyMeter(const Clock* clock, std::span<std::byte> scratch, uint64_t bytes);
  // Bytes/s, the median of at least three copies, in about `budget_ns`. With `team`, uses the
  // kernel that is set for large copies.
  double Rate(CopyKernel kernel, CopyTeam* team, int64_t budget_ns);
  // Seconds of one copy.
  double Once(CopyKernel kernel, CopyTeam* team);

 private:
  const Clock* const clock_;
  const std::span<std::byte> scratch_;
  const uint64_t bytes_, slots_;
  uint64_t at_ = 0;
};

}  // namespace tidepool::device

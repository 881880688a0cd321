// TuneCopies: measures how this machine copies large ranges fastest, and sets it (LargeCopyKernel,
// CopyTeam::Use).
//
// One thread, before others copy; blocks for the time given. CopyMeter is the same measurement for
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

// What one kernel reached.
struct CopyRate {
  CopyKernel kernel = CopyKernel::kMemcpy;
  double bytes_per_second = 0;  // copied, by one thread; read and written is twice as much
};

// What was measured, and what was chosen by it.
struct CopyTuning {
  // kMemcpy first; empty when nothing was measured (too little memory to copy in)
  std::vector<CopyRate> rates;
  CopyKernel chosen = CopyKernel::kStreamPages;
  uint32_t threads = 1;                  // that copy a large range together
  double together_bytes_per_second = 0;  // 0 with one thread, or not measured
  double seconds = 0;                    // that the measurement took
};

// Less than this is not measured in: it would all be in a cache.
inline constexpr uint64_t kTuneBytesMin = 64 * kMiB;

// `scratch` loses what is in it. `team` may be null. `clock` measures.
CopyTuning TuneCopies(std::span<std::byte> scratch, CopyTeam* team, int64_t budget_ns,
                      const Clock& clock);

// Copies ranges of `bytes` from one half of a scratch to the other, each time others, so that none
// is in a core's own cache.
class CopyMeter {
 public:
  // At least two ranges fit into the scratch. `clock` measures, and outlives the meter.
  CopyMeter(const Clock* clock, std::span<std::byte> scratch, uint64_t bytes);
  // Bytes a second, by the median of at least three copies, for about `budget_ns`. With `team`, by
  // the kernel that is set for large copies.
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

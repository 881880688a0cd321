// MeasureRates: how fast this machine copies to and from devices and updates states, for 1, 2, ...
// ranks at once: the input of the trainer's `--rcache auto` and `--plan auto`.
//
// The calling thread, with a thread per rank and helpers of its own; takes about `ranks` x 0.2 s,
// and `scratch_bytes` of memory. Rates are totals over all ranks. Source: Elixir v2, section 5 and
// tables 4 and 5 (which give updates in GB/s; these are 10^9 elements/s, as its profiler divides).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "device/device.h"
#include "optim/kernels/isa.h"

namespace tidepool::memserver {

// Rates with `ranks` at once; GB are 10^9 bytes.
struct MeasuredRates {
  uint32_t ranks = 0;
  double to_device_gb_per_s = 0, from_device_gb_per_s = 0;
  double host_update_g_elements_per_s = 0;
  double device_update_g_elements_per_s = 0;  // 0: the host is the device
};

// What to measure, and for how long.
struct RatesTask {
  // One per rank; the first `n` of them for n ranks. Not empty.
  std::vector<device::Device*> devices;
  bool devices_update = false;  // they are GPUs, whose Adam is measured too
  uint32_t workers = 1;         // number of host workers for updates
  optim::IsaLevel isa = optim::BestIsa();
  uint64_t scratch_bytes = 256 * kMiB;  // of host memory, for all ranks together
  // Called between two measurements; true: the result is no longer wanted. Empty: never.
  std::function<bool()> ends = {};
  int64_t window_ns = 60 * kNsPerMs;  // of one measurement
};

// Measures by number of ranks, from 1 to devices.size(). Errors: those of the devices and their
// streams; kStepAbandoned (`ends`).
Result<std::vector<MeasuredRates>> MeasureRates(const RatesTask& task, const Clock& clock);

// The text of the file that the trainer reads (trainer/advice/rates_file.h), with a line end.
// `device`: "cpu" or "cuda".
std::string RatesText(const std::vector<MeasuredRates>& rates, const std::string& machine,
                      const std::string& device);

}  // namespace tidepool::memserver

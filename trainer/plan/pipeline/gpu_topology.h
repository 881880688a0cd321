// GpuTopology: which GPUs share which PCIe root complex, and the copy rate through each.
//
// Any thread; values. GPUs are numbered complex by complex. Rates are in bytes per nanosecond (10^9
// bytes per second), in each direction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::trainer {

// One complex and its GPUs.
struct RootComplex {
  uint32_t gpus = 0;
  double bytes_per_ns = 0;  // of all its GPUs together; a single one can use all of it
};

struct GpuTopology {
  std::vector<RootComplex> complexes;

  // The number of GPUs.
  uint32_t gpus() const;
  // Requires gpu < gpus().
  uint32_t ComplexOf(uint32_t gpu) const;
  // A GPU's rate at the slowest complex, copying alone; and if all GPUs of each complex copy.
  double RateAlone() const;
  double RateShared() const;
  // In the paper's notation: "2+2".
  std::string Name() const;
};

}  // namespace tidepool::trainer

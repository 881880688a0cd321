// GpuTopology: which GPUs share which PCIe root complex, and how fast copies through it are.
//
// Any thread; values. GPUs are numbered complex by complex. Rates are in bytes a nanosecond, which
// is 10^9 bytes a second, in each direction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::trainer {

// One complex and its GPUs.
struct RootComplex {
  uint32_t gpus = 0;
  double bytes_per_ns = 0;  // of all its GPUs together; one alone can have it all
};

struct GpuTopology {
  std::vector<RootComplex> complexes;

  // All GPUs.
  uint32_t gpus() const;
  // Requires gpu < gpus().
  uint32_t ComplexOf(uint32_t gpu) const;
  // The slowest complex, whose GPU alone copies; and its share where all GPUs of each copy at once.
  double RateAlone() const;
  double RateShared() const;
  // As the paper writes it: "2+2".
  std::string Name() const;
};

}  // namespace tidepool::trainer

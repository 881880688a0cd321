#include "trainer/plan/pipeline/gpu_topology.h"

#include <algorithm>

namespace tidepool::trainer {

uint32_t GpuTopology::gpus() const {
  uint32_t gpus = 0;
  for (const RootComplex& complex : complexes) gpus += complex.gpus;
  return gpus;
}

uint32_t GpuTopology::ComplexOf(uint32_t gpu) const {
  uint32_t complex = 0;
  while (gpu >= complexes[complex].gpus) gpu -= complexes[complex++].gpus;
  return complex;
}

double GpuTopology::RateAlone() const {
  double rate = complexes.front().bytes_per_ns;
  for (const RootComplex& complex : complexes) rate = std::min(rate, complex.bytes_per_ns);
  return rate;
}

double GpuTopology::RateShared() const {
  double rate = RateAlone();
  for (const RootComplex& complex : complexes)
    rate = std::min(rate, complex.bytes_per_ns / complex.gpus);
  return rate;
}

std::string GpuTopology::Name() const {
  std::string name;
  for (const RootComplex& complex : complexes)
    name += (name.empty() ? "" : "+") + std::to_string(complex.gpus);
  return name;
}

}  // namespace tidepool::trainer

// StageMapping: which GPU computes which stage, so that GPUs of one root complex copy at different
// times: the cross mapping of Mobius (Feng et al., ASPLOS 2023, section 3.3).
//
// Any thread; pure. Stage j (from 0) is on GPU order[j mod N]. The paper's measure, which is
// minimised over all orders:
//   (12)  contention(i, j) = shared(i, j) / |i - j|
//   (13)  the sum over all pairs of stages i < j
// where shared is the number of GPUs under the root complex of both stages' GPUs, and 0 where those
// are different complexes. Pairs on one GPU count, too.
// The paper tries all orders. Which GPU of a complex has a stage makes no difference, so orders of
// complexes are tried here, and none whose first places alone have no less than the best so far.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/plan/pipeline/gpu_topology.h"

namespace tidepool::trainer {

// More GPUs than a search can order.
inline constexpr uint32_t kMappedGpusMax = 16;

struct StageMapping {
  std::vector<uint32_t> order;  // GPU of stages j, j + N, j + 2N, ...
  double contention = 0;        // (13)
};

// (13) of one order. Requires as many entries as GPUs.
double ContentionOf(const GpuTopology& topology, std::span<const uint32_t> order, uint32_t stages);

// The least contention; of equal ones the order that is first by number. Requires at most
// kMappedGpusMax GPUs.
StageMapping CrossMapping(const GpuTopology& topology, uint32_t stages);
// GPUs in their own order, as pipelines do that do not know the topology.
StageMapping SequentialMapping(const GpuTopology& topology, uint32_t stages);

}  // namespace tidepool::trainer

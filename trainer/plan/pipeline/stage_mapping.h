// StageMapping: which GPU computes which stage, so that GPUs of one root complex copy at different
// times: the cross mapping of Mobius (Feng et al., ASPLOS 2023, section 3.3).
//
// Any thread; pure. Stage j (from 0) is on GPU order[j mod N]. The paper's measure, minimised over
// all orders:
//   (12)  contention(i, j) = shared(i, j) / |i - j|
//   (13)  the sum over all pairs of stages i < j
// where shared is the number of GPUs under the common root complex of both stages' GPUs, or 0 if
// their complexes differ. Pairs on one GPU count, too.
// The paper tries all orders. GPUs of one complex are interchangeable, so this search tries orders
// of complexes, and prunes those whose first positions already reach the best sum so far.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/plan/pipeline/gpu_topology.h"

namespace tidepool::trainer {

// The most GPUs that the search can order.
inline constexpr uint32_t kMappedGpusMax = 16;

struct StageMapping {
  std::vector<uint32_t> order;  // GPU of stages j, j + N, j + 2N, ...
  double contention = 0;        // (13)
};

// (13) for one order. Requires as many entries as GPUs.
double ContentionOf(const GpuTopology& topology, std::span<const uint32_t> order, uint32_t stages);

// The least contention; ties: the lexicographically first order. Requires at most kMappedGpusMax
// GPUs.
StageMapping CrossMapping(const GpuTopology& topology, uint32_t stages);
// GPUs in ascending order, as in pipelines that ignore the topology.
StageMapping SequentialMapping(const GpuTopology& topology, uint32_t stages);

}  // namespace tidepool::trainer

// Cross mapping: Mobius' contention sums, and all orders of the GPUs.
#include "trainer/plan/pipeline/stage_mapping.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace tidepool::trainer {
namespace stage_mapping_test {

using Order = std::vector<uint32_t>;

GpuTopology Of(std::vector<uint32_t> gpus) {
  GpuTopology topology;
  for (const uint32_t count : gpus) topology.complexes.push_back({count, 13});
  return topology;
}

struct Golden {
  std::vector<uint32_t> gpus;
  uint32_t stages;
  double sequential, best;
  Order order;
};

// Equations (12) and (13), worked out by hand for round robin.
const Golden kGolden[] = {
    {{2, 2}, 8, 12.1333, 8.6667, {0, 2, 1, 3}},
    {{1, 3}, 8, 22.7000, 20.5286, {1, 0, 2, 3}},
    {{4}, 8, 54.9714, 54.9714, {0, 1, 2, 3}},
    {{2, 2}, 4, 4.0, 2.0, {0, 2, 1, 3}},
    {{1, 3}, 4, 7.5, 5.5, {1, 0, 2, 3}},
    {{4, 4}, 16, 86.0225, 54.9714, {0, 4, 1, 5, 2, 6, 3, 7}},
};

TEST(CrossMapping, HasThePapersContention) {
  for (const Golden& golden : kGolden) {
    const GpuTopology topology = Of(golden.gpus);
    const StageMapping cross = CrossMapping(topology, golden.stages);
    EXPECT_NEAR(SequentialMapping(topology, golden.stages).contention, golden.sequential, 5e-5)
        << topology.Name();
    EXPECT_NEAR(cross.contention, golden.best, 5e-5) << topology.Name();
    EXPECT_EQ(cross.order, golden.order) << topology.Name();
    EXPECT_NEAR(ContentionOf(topology, cross.order, golden.stages), cross.contention, 1e-9);
  }
}

// The sum over all permutations of the GPUs.
double Least(const GpuTopology& topology, uint32_t stages) {
  Order order = SequentialMapping(topology, stages).order;
  double least = ContentionOf(topology, order, stages);
  while (std::next_permutation(order.begin(), order.end()))
    least = std::min(least, ContentionOf(topology, order, stages));
  return least;
}

TEST(CrossMapping, IsTheBestOfAllPermutations) {
  SplitMix64 random(7);
  for (int i = 0; i < 300; ++i) {
    std::vector<uint32_t> gpus;
    for (uint32_t left = static_cast<uint32_t>(1 + random.Below(i % 50 == 0 ? 8 : 6)); left > 0;) {
      gpus.push_back(static_cast<uint32_t>(1 + random.Below(left)));
      left -= gpus.back();
    }
    const GpuTopology topology = Of(gpus);
    const auto stages = static_cast<uint32_t>(1 + random.Below(20));
    const StageMapping cross = CrossMapping(topology, stages);
    EXPECT_NEAR(cross.contention, Least(topology, stages), 1e-9) << topology.Name();

    Order sorted = cross.order;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, SequentialMapping(topology, stages).order) << "each GPU once";
  }
}

// With equal complexes neighbours are best kept apart, however many GPUs there are.
TEST(CrossMapping, TakesComplexesInTurnBeyondEightGpus) {
  const GpuTopology topology = Of({8, 8});
  const StageMapping cross = CrossMapping(topology, 32);
  for (uint32_t place = 0; place < 16; ++place)
    EXPECT_EQ(topology.ComplexOf(cross.order[place]), place % 2) << place;
}

}  // namespace stage_mapping_test
}  // namespace tidepool::trainer

// Parameters of several data groups in one run: dense ones on all ranks, experts on two, and
// experts on one.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/trainer/parity/expert_rig.h"

namespace tidepool::trainer {
namespace data_groups_test {

ExpertResult Served(const ExpertRig& rig) {
  Result<ExpertResult> result = TrainExpertsThroughServer(rig);
  EXPECT_TRUE(result.ok()) << result.status().Format();
  return result.ok() ? std::move(result).value() : ExpertResult();
}

double LargestRelativeDifference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return largest;
}

TEST(DataGroups, OfAllRanksOfTwoAndOfOneMatchPlainTraining) {
  const ExpertRig rig;
  const ExpertResult ours = Served(rig), plain = TrainExpertsPlain(rig);
  ASSERT_EQ(ours.losses.size(), rig.steps + 1);
  EXPECT_LT(LargestRelativeDifference(ours.losses, plain.losses), 1e-5);
  EXPECT_LT(LargestRelativeDifference(ours.grad_norms, plain.grad_norms), 1e-4);
  for (const double norm : ours.grad_norms) EXPECT_GT(norm, rig.clip);
  ASSERT_EQ(ours.weights.size(), plain.weights.size());
  for (const auto& [name, values] : plain.weights) {
    const std::vector<float>& served = ours.weights.at(name);
    ASSERT_EQ(served.size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(served[i], values[i], 1e-5) << name << " " << i;
  }
}

// Each rank's rCache is half of what it uses, so its decisions matter: they lead all ranks of a
// group to the same collectives, and each rank moves the bytes that its own plan names.
TEST(DataGroups, MoveWhatThePlansOfTheirRanksName) {
  ExpertRig rig;
  rig.steps = 5;
  const ExpertResult result = Served(rig), again = Served(rig);
  for (size_t rank = 0; rank < result.moved.size(); ++rank) {
    SCOPED_TRACE(rank);
    EXPECT_GT(result.evictions[rank], 0u);
    ASSERT_EQ(result.moved[rank].size(), rig.steps);
    for (size_t step = 1; step < rig.steps; ++step) {
      EXPECT_GT(result.planned[rank][step].bytes_h2d, 0u);
      EXPECT_EQ(result.moved[rank][step].bytes_h2d, result.planned[rank][step].bytes_h2d);
      EXPECT_EQ(result.moved[rank][step].bytes_d2h, result.planned[rank][step].bytes_d2h);
    }
  }
  // Rank 0 alone has all of its experts; the others share theirs, as all share the dense layers.
  EXPECT_GT(result.moved[0].back().bytes_d2h, result.moved[1].back().bytes_d2h);
  EXPECT_EQ(result.moved[1].back().bytes_d2h, result.moved[2].back().bytes_d2h);
  EXPECT_EQ(result.weights, again.weights) << "two runs differ";
  EXPECT_FALSE(result.weights.empty());
}

}  // namespace data_groups_test
}  // namespace tidepool::trainer

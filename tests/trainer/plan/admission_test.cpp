// What is estimated before the run is what the server's admission charges, and the server accepts every layout that is built here.
#include <gtest/gtest.h>

#include "trainer/job.h"
#include "trainer/plan/estimate.h"

namespace tidepool::trainer {
namespace admission_test {

struct Case {
  DType dtype;
  uint32_t world, micro_batches;
  std::string optimizer = "adamw", states = "fp32";
};

class Admission : public ::testing::TestWithParam<Case> {};

TEST_P(Admission, EstimateAndJobSpecAgree) {
  std::vector<ParameterNote> notes{{"wte", {500, 33}, 0, 0, true}};
  for (uint64_t i = 0; i < 40; ++i)
    notes.push_back({"p" + std::to_string(i), {1 + 37 * i % 90, 7}, static_cast<uint32_t>(i % 2), 0, false});
  LayoutOptions layout_options;
  layout_options.dtype = GetParam().dtype;
  layout_options.world = GetParam().world;
  const ChunkLayout layout = BuildLayout(notes, layout_options).value();
  const RcachePlan rcache = PlanRcache(layout, 0, "25%").value();
  RunOptions options;
  options.micro_batches = GetParam().micro_batches;
  options.optimizer = GetParam().optimizer;
  options.states = GetParam().states;
  const shm::JobSpec spec = MakeJobSpec(layout, options, rcache, "job");
  const Status valid = shm::Validate(spec);
  EXPECT_TRUE(valid.ok()) << valid.Format();

  const client::StateBytes charged = client::StateBytesOf(spec);
  const MemoryEstimate estimate = EstimateMemory(layout, {GetParam().micro_batches, rcache.bytes, spec.optimizer});
  EXPECT_EQ(estimate.master, charged.master);
  EXPECT_EQ(estimate.momentum, charged.momentum);
  EXPECT_EQ(estimate.variance, charged.variance);
  EXPECT_EQ(estimate.param16, charged.param16);
  EXPECT_EQ(estimate.gradient, charged.gradient);
  EXPECT_EQ(estimate.blocks, rcache.blocks);
  EXPECT_EQ(estimate.parameters, spec.ParameterCount());
}

INSTANTIATE_TEST_SUITE_P(Jobs, Admission,
                         ::testing::Values(Case{DType::kF32, 1, 1}, Case{DType::kF32, 3, 4}, Case{DType::kBF16, 2, 1},
                                           Case{DType::kF16, 4, 2}, Case{DType::kBF16, 2, 1, "adamw", "split"},
                                           Case{DType::kBF16, 1, 2, "lion", "split-bf16"}, Case{DType::kBF16, 2, 1, "adam", "split-8bit"},
                                           Case{DType::kF32, 1, 1, "adagrad"}, Case{DType::kBF16, 1, 1, "sgd", "split"}));

}  // namespace admission_test
}  // namespace tidepool::trainer

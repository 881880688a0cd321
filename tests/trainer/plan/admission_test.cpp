// The estimate before a run is what the server's admission charges, and the server accepts every
// layout that is built here.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/units.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/validate.h"
#include "trainer/run/job.h"
#include "trainer/plan/estimate.h"
#include "trainer/run/describe_plan.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace admission_test {

struct Case {
  DType dtype;
  uint32_t world, micro_batches;
  std::string optimizer = "adamw", states = "fp32";
  bool mixed = false;  // every third parameter is fp32
};

class Admission : public ::testing::TestWithParam<Case> {};

TEST_P(Admission, EstimateAndJobSpecAgree) {
  std::vector<ParameterNote> notes{{"wte", {500, 33}, 0, 0, true}};
  for (uint64_t i = 0; i < 40; ++i)
    notes.push_back(
        {"p" + std::to_string(i), {1 + 37 * i % 90, 7}, static_cast<uint32_t>(i % 2), 0, false});
  for (size_t i = 1; GetParam().mixed && i < notes.size(); i += 3) notes[i].dtype = DType::kF32;
  LayoutOptions layout_options;
  layout_options.dtype = GetParam().dtype;
  layout_options.world = GetParam().world;
  const ChunkLayout layout = BuildLayout(notes, layout_options).value();
  const RcachePlan rcache = PlanRcache(layout, 0, "25%").value();
  RunOptions options;
  options.training.micro_batches = GetParam().micro_batches;
  options.optimizer.rule = GetParam().optimizer;
  options.optimizer.states = GetParam().states;
  const shm::JobSpec spec = MakeJobSpec(layout, options, rcache, "job");
  const Status valid = shm::Validate(spec);
  EXPECT_TRUE(valid.ok()) << valid.Format();
  EXPECT_EQ(spec.f32_chunks > 0, GetParam().mixed);

  const client::StateBytes charged = client::StateBytesOf(spec);
  const MemoryEstimate estimate =
      EstimateMemory(layout, {GetParam().micro_batches, rcache.bytes, spec.optimizer});
  EXPECT_EQ(estimate.master, charged.master);
  EXPECT_EQ(estimate.momentum, charged.momentum);
  EXPECT_EQ(estimate.variance, charged.variance);
  EXPECT_EQ(estimate.param16, charged.param16);
  EXPECT_EQ(estimate.gradient, charged.gradient);
  EXPECT_EQ(estimate.blocks, rcache.blocks);
  EXPECT_EQ(estimate.parameters, spec.ParameterCount());
}

INSTANTIATE_TEST_SUITE_P(Jobs, Admission,
                         ::testing::Values(Case{DType::kF32, 1, 1}, Case{DType::kF32, 3, 4},
                                           Case{DType::kBF16, 2, 1}, Case{DType::kF16, 4, 2},
                                           Case{DType::kBF16, 2, 1, "adamw", "split"},
                                           Case{DType::kBF16, 1, 2, "lion", "split-bf16"},
                                           Case{DType::kBF16, 2, 1, "adam", "split-8bit"},
                                           Case{DType::kF32, 1, 1, "adagrad"},
                                           Case{DType::kBF16, 1, 1, "sgd", "split"},
                                           Case{DType::kBF16, 2, 1, "adamw", "split-8bit", true},
                                           Case{DType::kBF16, 1, 3, "adam", "fp32", true}));

// Bytes of two slots of whole pieces for every chunk: a page each, and the planes in whole pages.
uint64_t TwoSlotsOf(const shm::JobSpec& spec, uint64_t bytes_per_element) {
  uint64_t bytes = 0;
  for (const auto& chunk : spec.chunks) {
    for (uint64_t begin = 0; begin < chunk.elements; begin += shm::kPieceElements) {
      const uint64_t elements = std::min(shm::kPieceElements, chunk.elements - begin);
      bytes += 2 * (kPageBytes + RoundUp(elements * bytes_per_element, kPageBytes));
    }
  }
  return bytes;
}

TEST(EstimateOnNvme, CountsTwoSlotsOfEachChunk) {
  for (const char* dtype : {"fp32", "bf16"}) {
    RunOptions options;
    options.model.preset = "quickstart";
    options.model.dtype = dtype;
    auto plan = MakeRunPlan(options, 2, 0, "job");
    ASSERT_TRUE(plan.ok()) << plan.status().Format();
    const uint64_t bytes = TwoSlotsOf(plan->spec, 12);
    EXPECT_GT(bytes, 24 * plan->memory.parameters);
    EXPECT_EQ(client::NvmeBytesOf(plan->spec, 0), bytes) << "what admission reserves";
    EXPECT_NE(DescribePlan(*plan).find(FormatBytes(bytes) + " of NVMe (two slots a chunk)"),
              std::string::npos)
        << DescribePlan(*plan);
    EXPECT_NE(PlanJson(*plan).find("\"nvme_bytes\":" + std::to_string(RoundUp(bytes, kMiB)) + ","),
              std::string::npos)
        << PlanJson(*plan);
  }
}

}  // namespace admission_test
}  // namespace tidepool::trainer

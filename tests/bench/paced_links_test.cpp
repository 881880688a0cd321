// Links of an emulated machine: real copies, at their rate, in memserver's order; and a step of a
// small pipeline, whose bytes are those of the plan.
#include "bench/pipeline/paced_links.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "base/clock.h"
#include "bench/pipeline/grid.h"
#include "bench/pipeline/paced_machine.h"
#include "bench/pipeline/paced_run.h"
#include "tests/trainer/advice/paper_models.h"

namespace tidepool::bench {
namespace paced_links_test {

constexpr uint64_t kBytes = 4096;
constexpr double kRate = 0.004096;  // bytes a nanosecond: a copy takes a millisecond

struct Buffers {
  std::vector<std::byte> from = std::vector<std::byte>(kBytes, std::byte{7});
  std::vector<std::byte> to = std::vector<std::byte>(kBytes);

  LinkCopy Copy(uint32_t gpu, uint32_t uses_ahead) {
    LinkCopy copy;
    copy.to = to.data();
    copy.from = from.data();
    copy.bytes = kBytes;
    copy.gpu = gpu;
    copy.uses_ahead = uses_ahead;
    return copy;
  }
};

TEST(PacedLinks, CopyAtTheirRateAndWhatIsAwaitedFirst) {
  SteadyClock clock;
  PacedLinks links({kRate}, &clock);
  Buffers buffers;
  const int64_t begin_ns = clock.NowNs();
  // The first one begins at once; the others wait while it lasts.
  const uint64_t first = links.Start(buffers.Copy(0, 0));
  std::vector<uint64_t> others;
  for (const uint32_t ahead : {9U, 3U, 6U})
    others.push_back(links.Start(buffers.Copy(ahead, ahead)));
  for (const uint64_t copy : others) links.Wait(copy);
  EXPECT_TRUE(links.Ended(first));
  EXPECT_GE(clock.NowNs() - begin_ns, 4 * kNsPerMs) << "four copies of a millisecond each";
  EXPECT_EQ(buffers.to, buffers.from);

  const std::vector<CopyRecord> records = links.TakeRecords();
  ASSERT_EQ(records.size(), 4U);
  const std::vector<uint32_t> order = {0, 3, 6, 9};
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].gpu, order[i]);
    EXPECT_EQ(records[i].end_ns - records[i].start_ns, kNsPerMs);
    EXPECT_GE(records[i].start_ns, i == 0 ? begin_ns : records[i - 1].end_ns) << "one at a time";
  }
  EXPECT_TRUE(links.TakeRecords().empty());
}

TEST(PacedLinks, AreTwoForEachComplexAndTellWhatEnds) {
  SteadyClock clock;
  Buffers up, down, other;
  uint64_t told = 0;
  {
    PacedLinks links({kRate, kRate}, &clock);
    LinkCopy last = other.Copy(2, 0);
    last.complex = 1;
    last.then = [&] { ++told; };
    LinkCopy leaves = down.Copy(1, 0);
    leaves.up = false;
    const uint64_t copies[] = {links.Start(up.Copy(0, 0)), links.Start(std::move(leaves)),
                               links.Start(std::move(last))};
    for (const uint64_t copy : copies) links.Wait(copy);
    const std::vector<CopyRecord> records = links.TakeRecords();
    ASSERT_EQ(records.size(), 3U);
    for (const CopyRecord& record : records)
      EXPECT_EQ(record.start_ns, record.asked_ns) << "links do not wait for each other";
  }
  EXPECT_EQ(told, 1U);
}

// Weights come twice at most, sums leave once, tensors go down and up: whatever the machine's mood.
TEST(PacedRun, MovesTheBytesOfItsPlan) {
  SteadyClock clock;
  trainer::PipelineQuestion question = QuestionOf(trainer::kPaperModels[1], {1, 1});
  question.model.shape.layers = 8;
  question.machine.gpu_bytes = uint64_t{8} << 30;
  const PacedMachine machine = MachineOf(question, {.bytes = 4096, .times = 60});
  const PacedPlan plan = PlanOf(machine);
  ASSERT_GT(plan.ends.size(), 2U);
  const PacedResult result = RunPipeline(machine, plan, plan.cross, 1, &clock);

  const uint64_t batches = machine.task.micro_batches, inner = plan.ends.size() - 1;
  const uint64_t tensor = batches * machine.task.layers.front().output_bytes;
  uint64_t weights = 0;
  for (const trainer::PipelineLayer& layer : machine.task.layers) weights += layer.weight_bytes;
  EXPECT_EQ(result.bytes_down, 2 * weights + 2 * inner * tensor) << "sums are fp32";
  EXPECT_GE(result.bytes_up, weights + (3 * inner - 1) * tensor);
  EXPECT_LE(result.bytes_up, 2 * weights + (3 * inner - 1) * tensor);
  EXPECT_GE(result.step_ns, result.compute_ns);
  EXPECT_GE(result.step_ns, result.link_ns);
  EXPECT_GT(FillNs(machine, plan), 0);
  EXPECT_TRUE(result.exposed >= 0 && result.exposed <= 1);
  EXPECT_TRUE(result.fast > 0 && result.fast <= 1);
}

}  // namespace paced_links_test
}  // namespace tidepool::bench

// FindPartition: against all partitions, by constraints that are written a second time here; the
// paper's two simple ways beside it; and what it says where nothing fits.
#include "trainer/plan/pipeline/stage_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <string>

#include "base/units.h"
#include "tests/trainer/plan/pipeline/random_pipeline.h"
#include "trainer/plan/pipeline/stage_times.h"

namespace tidepool::trainer {
namespace stage_partition_test {

using Ends = std::vector<uint32_t>;

// The constraints of stage_times.h, from the task itself: times grow until all of them hold.
class Constraints {
 public:
  Constraints(const PipelineTask& task, const Ends& ends) : task_(task), ends_(ends) {
    starts_[0].assign(ends.size(), std::vector<int64_t>(task.micro_batches, 0));
    starts_[1] = starts_[0];
  }

  bool Fits() const {
    for (size_t j = 0; j < ends_.size(); ++j) {
      if (Needed(j, 0) > task_.gpu_bytes || Needed(j, 1) > task_.gpu_bytes) return false;
    }
    return true;
  }

  // Times grow until every constraint holds.
  int64_t Step() {
    for (bool grew = true; grew;) {
      grew = false;
      for (size_t j = 0; j < ends_.size(); ++j) {
        for (size_t m = 0; m < task_.micro_batches; ++m) grew = Raise(j, m) || grew;
      }
    }
    return starts_[1][0].back() + Time(0, 1);
  }

 private:
  size_t First(size_t j) const { return j == 0 ? 0 : ends_[j - 1]; }
  int64_t Over(size_t j, const std::function<int64_t(const PipelineLayer&)>& of) const {
    int64_t sum = 0;
    for (size_t i = First(j); i < ends_[j]; ++i) sum += of(task_.layers[i]);
    return sum;
  }
  int64_t Time(size_t j, int e) const {
    return Over(j, [&](const PipelineLayer& l) { return e == 0 ? l.forward_ns : l.backward_ns; });
  }
  int64_t Ns(uint64_t bytes) const { return CopyNs(bytes, task_.bytes_per_ns); }
  uint64_t Sent(size_t j) const {  // by the stage in front of j
    return j == 0 || j == ends_.size() ? 0 : task_.layers[First(j) - 1].output_bytes;
  }
  uint64_t Needed(size_t j, int e) const {
    uint64_t sum = 2 * Sent(j + 1) + (e == 0 ? 2 : 4) * Sent(j), work = 0;
    for (size_t i = First(j); i < ends_[j]; ++i) {
      const PipelineLayer& l = task_.layers[i];
      sum += l.weight_bytes + (e == 0 ? 0 : l.gradient_bytes + l.kept_bytes);
      work = std::max(work, e == 0 ? l.forward_work_bytes : l.backward_work_bytes);
    }
    return sum + work;
  }
  int64_t Upload(size_t j, int e) const {
    return Over(j, [&](const PipelineLayer& l) { return Ns(l.weight_bytes); }) +
           (e == 0 ? 0 : Ns(Sent(j)));
  }

  bool Raise(size_t j, size_t m) {
    const size_t last = task_.micro_batches - 1, count = ends_.size(), n = task_.gpus;
    int64_t forward = starts_[0][j][m], backward = starts_[1][j][m];
    if (m > 0) {
      forward = std::max(forward, starts_[0][j][m - 1] + Time(j, 0));
      backward = std::max(backward, starts_[1][j][m - 1] + Time(j, 1));
    }

    if (j > 0) forward = std::max(forward, starts_[0][j - 1][m] + Time(j - 1, 0) + Ns(Sent(j)));
    if (j + 1 < count) {
      backward = std::max(backward, starts_[1][j + 1][m] + Time(j + 1, 1) + Ns(Sent(j + 1)));
    } else {
      backward = std::max(backward, starts_[0][j][last] + Time(j, 0));
    }

    if (m == 0) forward = std::max(forward, j < n ? Upload(j, 0) : Loaded(j, j - n, 0));
    if (m == 0 && j + n < count) backward = std::max(backward, Loaded(j, j + n, 1));

    const bool grew = forward > starts_[0][j][m] || backward > starts_[1][j][m];
    starts_[0][j][m] = forward;
    starts_[1][j][m] = backward;
    return grew;
  }

  // (9) with the best P_j of (5), (6).
  int64_t Loaded(size_t j, size_t before, int e) const {
    const int64_t end = starts_[e][before].back() + Time(before, e);
    const int64_t spare = static_cast<int64_t>(
        static_cast<double>(task_.gpu_bytes - Needed(before, e)) / task_.bytes_per_ns);
    const int64_t part = std::min({spare, end - starts_[e][before].front(), Upload(j, e)});
    return end + Upload(j, e) - part;
  }

  const PipelineTask& task_;
  const Ends& ends_;
  std::array<std::vector<std::vector<int64_t>>, 2> starts_;
};

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// The least step over all partitions, by number of stages; [0]: over all numbers.
std::vector<int64_t> Exhaustive(const PipelineTask& task) {
  const auto layers = static_cast<uint32_t>(task.layers.size());
  std::vector<int64_t> best(layers + 1, kNone);
  for (uint32_t cuts = 0; cuts < 1U << (layers - 1); ++cuts) {
    Ends ends;
    for (uint32_t i = 1; i < layers; ++i) {
      if ((cuts >> (i - 1) & 1) != 0) ends.push_back(i);
    }
    ends.push_back(layers);
    Constraints constraints(task, ends);
    if (!constraints.Fits()) continue;
    const int64_t step = constraints.Step();
    best[ends.size()] = std::min(best[ends.size()], step);
    best[0] = std::min(best[0], step);
  }
  return best;
}

TEST(FindPartition, IsNeverWorseThanAnyOtherPartition) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const PipelineTask task = RandomPipeline(seed, 9);
    const StageTable table(task);
    const std::vector<int64_t> best = Exhaustive(task);
    auto found = FindPartition(table, {});
    ASSERT_TRUE(found.ok()) << seed;
    EXPECT_TRUE(found->proven()) << seed;
    EXPECT_EQ(found->step_ns, best[0]) << seed;
    EXPECT_EQ(TimesOf(task, table.StagesOf(found->ends)).step_ns, best[0]) << seed;
  }
}

TEST(FindPartition, HasExactlyAsManyStagesAsAskedFor) {
  for (uint64_t seed = 400; seed < 600; ++seed) {
    const PipelineTask task = RandomPipeline(seed, 8);
    const StageTable table(task);
    const std::vector<int64_t> best = Exhaustive(task);
    for (uint32_t stages = 1; stages <= table.layers(); ++stages) {
      auto found = FindPartition(table, {.stages = stages});
      ASSERT_EQ(found.ok(), best[stages] != kNone) << seed << ", " << stages;
      if (!found.ok()) continue;
      EXPECT_EQ(found->ends.size(), stages) << seed;
      EXPECT_EQ(found->step_ns, best[stages]) << seed << ", " << stages;
    }
  }
}

TEST(FindPartition, HoldsForTwelveLayersToo) {
  for (uint64_t seed = 600; seed < 606; ++seed) {
    PipelineTask task = RandomPipeline(seed, 12);
    while (task.layers.size() < 12) task.layers.push_back(task.layers.back());
    auto found = FindPartition(StageTable(task), {});
    ASSERT_TRUE(found.ok()) << seed;
    EXPECT_EQ(found->step_ns, Exhaustive(task)[0]) << seed;
  }
}

// A limit that ends the search early leaves a valid partition and a bound that holds.
TEST(FindPartition, SaysHowFarItMayBeFromTheBestWhereItStopsEarly) {
  uint32_t stopped = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const PipelineTask task = RandomPipeline(seed, 10);
    const StageTable table(task);
    auto whole = FindPartition(table, {});
    auto early = FindPartition(table, {.stages_tried_max = 1});
    ASSERT_TRUE(whole.ok() && early.ok()) << seed;
    EXPECT_GE(early->step_ns, whole->step_ns) << seed;
    EXPECT_LE(early->bound_ns, whole->step_ns) << seed;
    if (!early->proven()) ++stopped;
  }
  EXPECT_GT(stopped, 10U);
}

// Section 4.3 of the paper: neither as many layers as fit nor one a stage is better.
TEST(FindPartition, IsAtLeastAsGoodAsThePapersSimpleWays) {
  uint32_t better = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const StageTable table(RandomPipeline(seed, 16));
    auto found = FindPartition(table, {});
    auto most = MaximumStages(table), least = MinimumStages(table);
    ASSERT_TRUE(found.ok() && most.ok() && least.ok()) << seed;
    EXPECT_LE(found->step_ns, std::min(most->step_ns, least->step_ns)) << seed;
    if (found->step_ns < std::min(most->step_ns, least->step_ns)) ++better;

    EXPECT_EQ(least->ends.size(), table.layers());
    for (const Stage& stage : table.StagesOf(most->ends)) {
      EXPECT_TRUE(stage.fits) << seed;
      if (stage.behind < table.layers()) {
        EXPECT_FALSE(table.At(stage.first, table.layers()).fits);
      }
    }
  }
  EXPECT_GT(better, 100U);
}

TEST(FindPartition, NamesTheLayerThatDoesNotFit) {
  PipelineTask task;
  task.layers.assign(3, {.forward_ns = 1, .backward_ns = 1, .weight_bytes = kMiB});
  task.layers[1].weight_bytes = 5 * kMiB;
  task.gpu_bytes = 4 * kMiB;
  auto found = FindPartition(StageTable(task), {});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().id(), ErrorId::kDeviceMemoryShort);
  EXPECT_NE(found.status().Format().find("layer 2 of 3 needs 5.00 MiB"), std::string::npos)
      << found.status().Format();
}

TEST(FindPartition, NamesTheFewestStagesThatFit) {
  PipelineTask task;
  task.layers.assign(6, {.forward_ns = 1, .backward_ns = 1, .weight_bytes = kMiB});
  task.gpu_bytes = 2 * kMiB;
  auto few = FindPartition(StageTable(task), {.stages = 2});
  ASSERT_FALSE(few.ok());
  EXPECT_NE(few.status().Format().find("give at least 3 stages"), std::string::npos)
      << few.status().Format();

  auto many = FindPartition(StageTable(task), {.stages = 7});
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.status().id(), ErrorId::kUsageError);
}

TEST(StageTable, CountsEqualLayersOnce) {
  PipelineTask task = RandomPipeline(3, 1);
  task.layers.assign(40, task.layers.front());
  EXPECT_EQ(DifferentLayers(task.layers), 1U);
  task.layers.back().weight_bytes += 1;
  EXPECT_EQ(DifferentLayers(task.layers), 2U);
}

}  // namespace stage_partition_test
}  // namespace tidepool::trainer

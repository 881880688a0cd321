// Schedules of the pipeline: every one of them is checked by a checker of its own, which finds what
// is broken on purpose; the paper's figure 4, and what cross mapping gains.
#include "trainer/plan/pipeline/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "base/random.h"
#include "tests/trainer/plan/pipeline/random_pipeline.h"
#include "tests/trainer/plan/pipeline/schedule_checker.h"
#include "trainer/plan/pipeline/stage_mapping.h"
#include "trainer/plan/pipeline/stage_partition.h"
#include "trainer/plan/pipeline/stage_times.h"

namespace tidepool::trainer {
namespace pipeline_schedule_test {

// The task's GPUs under root complexes, in any order, each with the rate of the task.
ScheduleTask Task(const PipelineTask& task, const std::vector<uint32_t>& ends, uint64_t seed) {
  SplitMix64 random(seed);
  ScheduleTask made;
  made.layers = task.layers;
  made.stages = StageTable(task).StagesOf(ends);
  for (uint32_t left = task.gpus; left > 0;) {
    const auto gpus = static_cast<uint32_t>(1 + random.Below(left));
    made.topology.complexes.push_back({gpus, task.bytes_per_ns});
    left -= gpus;
  }

  made.order.resize(task.gpus);
  std::iota(made.order.begin(), made.order.end(), 0U);
  for (size_t i = made.order.size(); i > 1; --i)
    std::swap(made.order[i - 1], made.order[random.Below(i)]);
  made.micro_batches = task.micro_batches;
  made.gpu_bytes = task.gpu_bytes;
  return made;
}

// Stages that fit, drawn at random.
std::vector<uint32_t> RandomEnds(const StageTable& table, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<uint32_t> ends;
  for (uint32_t first = 0; first < table.layers(); first = ends.back()) {
    std::vector<uint32_t> fitting;
    for (uint32_t behind = first + 1; behind <= table.layers(); ++behind) {
      if (table.At(first, behind).fits) fitting.push_back(behind);
    }
    ends.push_back(fitting[random.Below(fitting.size())]);
  }
  return ends;
}

TEST(PipelineSchedule, CouldHappenForEveryPartition) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const PipelineTask task = RandomPipeline(seed, 14);
    const StageTable table(task);
    const std::vector<uint32_t> ends = RandomEnds(table, seed);
    const ScheduleTask made = Task(task, ends, seed);
    const PipelineSchedule schedule = ScheduleOf(made);
    EXPECT_EQ(CheckSchedule(made, schedule), "") << seed;
    // Contention, tensors through host memory and sums of gradients only add to the program's time.
    EXPECT_GE(schedule.compute_end_ns, TimesOf(task, made.stages).step_ns) << seed;
    EXPECT_GE(schedule.BubbleShare(task.gpus), 0) << seed;
  }
}

// Where the program leaves nothing out, the schedule is the program's.
TEST(PipelineSchedule, IsTheProgramsWithoutContentionTensorsAndSums) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    PipelineTask task = RandomPipeline(seed, 12);
    for (PipelineLayer& layer : task.layers) layer.output_bytes = layer.gradient_bytes = 0;
    // Layers come whole, so their room is all or nothing.
    task.gpu_bytes = seed % 2 == 0 ? 1'000'000 : task.gpu_bytes;
    const StageTable table(task);
    std::vector<uint32_t> ends = RandomEnds(table, seed);
    if (seed % 2 != 0) {
      for (PipelineLayer& layer : task.layers) {
        layer = task.layers.front();
        layer.forward_work_bytes = layer.backward_work_bytes = layer.kept_bytes = 0;
      }
      task.gpu_bytes = task.layers.front().weight_bytes;
      ends.resize(task.layers.size());
      std::iota(ends.begin(), ends.end(), 1U);
    }

    ScheduleTask made = Task(task, ends, seed);
    made.topology.complexes.assign(task.gpus, {1, task.bytes_per_ns});
    const PipelineSchedule schedule = ScheduleOf(made);
    EXPECT_EQ(CheckSchedule(made, schedule), "") << seed;
    EXPECT_EQ(schedule.step_ns, TimesOf(task, made.stages).step_ns) << seed;
  }
}

// On one GPU each weight comes once a pass, not once a micro-batch.
TEST(PipelineSchedule, OfOneGpuFetchesWeightsOnceAPass) {
  PipelineTask task = RandomPipeline(5, 1);
  task.layers.assign(6, task.layers.front());
  task.gpus = 1;
  task.micro_batches = 5;
  task.gpu_bytes *= 3;
  const ScheduleTask made = Task(task, {1, 2, 3, 4, 5, 6}, 0);
  const PipelineSchedule schedule = ScheduleOf(made);
  EXPECT_EQ(CheckSchedule(made, schedule), "");

  uint64_t weights = 0;
  for (const Copy& copy : schedule.copies) {
    if (copy.kind == CopyKind::kWeights) weights += copy.bytes;
  }
  // The last stage stays for backward.
  EXPECT_EQ(weights, (2 * 6 - 1) * task.layers.front().weight_bytes);
}

// Mobius, figure 4: 8 stages of one unit on 4 GPUs, 4 micro-batches, two GPUs a root complex, no
// room to prefetch. With copies of two units cross mapping saves the two units that the paper
// names.
TEST(PipelineSchedule, GainsTheTwoUnitsOfFigure4ByCrossMapping) {
  PipelineTask task;
  task.layers.assign(8, {.forward_ns = 100, .backward_ns = 100, .weight_bytes = 200});
  task.gpus = task.micro_batches = 4;
  task.gpu_bytes = 200;
  ScheduleTask made;
  made.layers = task.layers;
  made.stages = StageTable(task).StagesOf(std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 8});
  made.topology.complexes = {{2, 1}, {2, 1}};
  made.micro_batches = 4;
  made.gpu_bytes = 200;

  // The first stages of a step are there before it, as in the figure.
  const auto step = [&](const std::vector<uint32_t>& order) {
    made.order = order;
    const PipelineSchedule schedule = ScheduleOf(made);
    EXPECT_EQ(CheckSchedule(made, schedule), "");
    int64_t first = 0;
    for (const ComputeSpan& span : schedule.computes) {
      if (span.stage == 3 && span.micro_batch == 0 && !span.backward) first = span.start_ns;
    }
    return schedule.compute_end_ns - first;
  };
  const int64_t sequential = step({0, 1, 2, 3});
  const int64_t cross = step(CrossMapping(made.topology, 8).order);
  EXPECT_EQ(sequential - cross, 200);
}

// Section 4.4: 8 GPUs, four a root complex, where copies take as long as computing.
TEST(PipelineSchedule, IsShorterWithCrossMappingUnderContention) {
  uint32_t shorter = 0, longer = 0;
  int64_t gained = 0, whole = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    PipelineTask task = RandomPipeline(seed, 1);
    task.layers.assign(16 + seed % 17, task.layers.front());
    task.gpus = 8;
    task.micro_batches = 8;
    task.gpu_bytes = (2 + seed % 4) * StageTable(task).At(1, 2).backward_bytes;
    const StageTable table(task);
    auto partition = FindPartition(table, {});
    ASSERT_TRUE(partition.ok()) << seed;
    ScheduleTask made = Task(task, partition->ends, seed);
    made.topology.complexes.assign(2, {4, task.bytes_per_ns});

    const auto stages = static_cast<uint32_t>(made.stages.size());
    made.order = SequentialMapping(made.topology, stages).order;
    const PipelineSchedule sequential = ScheduleOf(made);
    made.order = CrossMapping(made.topology, stages).order;
    const PipelineSchedule cross = ScheduleOf(made);
    EXPECT_EQ(CheckSchedule(made, cross), "") << seed;

    if (cross.step_ns < sequential.step_ns) ++shorter;
    if (cross.step_ns > sequential.step_ns) ++longer;
    gained += sequential.step_ns - cross.step_ns;
    whole += sequential.step_ns;
  }
  EXPECT_GT(shorter, 4 * longer);
  EXPECT_GT(gained * 20, whole) << "5 % on average";
}

struct Planted {
  const char* found;  // the word that the checker begins with
  // False where the schedule has nothing that could be broken like this.
  std::function<bool(ScheduleTask*, PipelineSchedule*)> breaks;
};

ComputeSpan* Find(PipelineSchedule* schedule, uint32_t stage, uint32_t micro_batch) {
  for (ComputeSpan& span : schedule->computes) {
    if (span.stage == stage && span.micro_batch == micro_batch && !span.backward) return &span;
  }
  return nullptr;
}

void Shift(ComputeSpan* span, int64_t by) {
  span->start_ns += by;
  span->end_ns += by;
}

// The last copy of this kind and its only span.
CopySpan* OnlySpan(PipelineSchedule* schedule, CopyKind kind) {
  CopySpan* only = nullptr;
  for (uint32_t copy = 0; copy < schedule->copies.size(); ++copy) {
    if (schedule->copies[copy].kind != kind) continue;
    only = nullptr;
    uint32_t spans = 0;
    for (CopySpan& span : schedule->spans) {
      if (span.copy == copy && ++spans > 0) only = &span;
    }
    if (spans > 1) only = nullptr;
  }
  return only;
}

const Planted kPlanted[] = {
    {"compute missing", [](auto*, auto* s) { return s->computes.pop_back(), true; }},
    {"compute twice",
     [](auto*, auto* s) { return s->computes.push_back(s->computes.front()), true; }},
    {"compute time", [](auto*, auto* s) { return --s->computes.front().end_ns, true; }},
    {"compute gpu",
     [](auto* task, auto* s) {
       s->computes.front().gpu += 1;
       return task->order.size() > 1;
     }},
    {"order",
     [](auto* task, auto* s) {
       if (task->micro_batches < 2) return false;
       std::swap(Find(s, 0, 0)->start_ns, Find(s, 0, 1)->start_ns);
       std::swap(Find(s, 0, 0)->end_ns, Find(s, 0, 1)->end_ns);
       return true;
     }},
    {"early weights", [](auto*, auto* s) { return Shift(Find(s, 0, 0), -1), true; }},
    {"early input",
     [](auto* task, auto* s) {
       if (task->stages.size() < 2 || task->stages[1].input_bytes == 0) return false;
       ComputeSpan* reads = Find(s, 1, 0);
       int64_t there = 0;
       for (const CopySpan& span : s->spans) {
         const Copy& copy = s->copies[span.copy];
         if (copy.kind == CopyKind::kInput && copy.stage == 1 && copy.item == 0 && !copy.backward)
           there = span.end_ns;
       }
       // Only where nothing else held it up.
       if (reads->start_ns != there) return false;
       for (const CopySpan& span : s->spans) {
         const Copy& copy = s->copies[span.copy];
         if (copy.kind == CopyKind::kWeights && copy.stage == 1 && !copy.backward &&
             span.end_ns >= there)
           return false;
       }
       return Shift(reads, -1), task->order.size() > 1;
     }},
    {"copy missing",
     [](auto*, auto* s) {
       const auto last = static_cast<uint32_t>(s->copies.size() - 1);
       std::erase_if(s->spans, [&](const CopySpan& span) { return span.copy == last; });
       s->copies.pop_back();
       return true;
     }},
    {"copy time", [](auto*, auto* s) { return ++s->spans.back().end_ns, true; }},
    {"copy bytes", [](auto*, auto* s) { return ++s->copies.front().bytes, true; }},
    {"link",
     [](auto*, auto* s) {
       // The second upload of a link goes back to where the first is.
       for (CopySpan& span : s->spans) {
         if (&span == s->spans.data()) continue;
         const CopySpan& first = s->spans.front();
         const Copy &a = s->copies[first.copy], &b = s->copies[span.copy];
         if (a.gpu != b.gpu || a.up() != b.up()) continue;
         const int64_t by = span.start_ns - first.start_ns;
         span.start_ns -= by;
         span.end_ns -= by;
         return true;
       }
       return false;
     }},
    {"early sums",
     [](auto*, auto* s) {
       CopySpan* sums = OnlySpan(s, CopyKind::kSums);
       if (sums == nullptr) return false;
       int64_t free = 0;
       for (const CopySpan& span : s->spans) {
         if (&span != sums) free = std::max(free, span.end_ns);
       }
       // Nothing else is on its way then.
       const Copy& copy = s->copies[sums->copy];
       for (const ComputeSpan& span : s->computes) {
         if (span.backward && span.stage == copy.stage && span.end_ns > free &&
             span.end_ns == sums->start_ns) {
           --sums->start_ns;
           --sums->end_ns;
           return true;
         }
       }
       return false;
     }},
    {"memory",
     [](auto* task, auto* s) {
       task->gpu_bytes = PeakBytes(*task, *s) - 1;
       return true;
     }},
    {"end", [](auto*, auto* s) { return ++s->step_ns, true; }},
};

TEST(ScheduleChecker, FindsWhatIsBrokenOnPurpose) {
  for (const Planted& planted : kPlanted) {
    uint32_t broken = 0;
    for (uint64_t seed = 0; seed < 120; ++seed) {
      const PipelineTask task = RandomPipeline(seed, 10);
      ScheduleTask made = Task(task, RandomEnds(StageTable(task), seed), seed);
      PipelineSchedule schedule = ScheduleOf(made);
      if (!planted.breaks(&made, &schedule)) continue;
      ++broken;
      EXPECT_TRUE(CheckSchedule(made, schedule).starts_with(planted.found))
          << planted.found << ", " << seed << ": " << CheckSchedule(made, schedule);
    }
    EXPECT_GT(broken, 5U) << planted.found;
  }
}

// The memory of a GPU is used, not only respected.
TEST(PipelineSchedule, UsesTheRoomThatThereIs) {
  uint32_t full = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const PipelineTask task = RandomPipeline(seed, 14);
    const ScheduleTask made = Task(task, RandomEnds(StageTable(task), seed), seed);
    if (PeakBytes(made, ScheduleOf(made)) * 10 >= task.gpu_bytes * 8) ++full;
  }
  EXPECT_GT(full, 50U);
}

}  // namespace pipeline_schedule_test
}  // namespace tidepool::trainer

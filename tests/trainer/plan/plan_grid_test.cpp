// `--plan auto` on a grid of models, machines, memory and speeds, judged by a simulation of the
// step that knows nothing of the planners (tests/trainer/plan/step_simulation.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/units.h"
#include "tests/trainer/plan/step_simulation.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/plan/presets.h"
#include "trainer/plan/search.h"
#include "trainer/plan/use_trace.h"

namespace tidepool::trainer {
namespace plan_grid_test {

constexpr double kWorseAtMost = 1.01;

// The grid. Models of Elixir v2's evaluation, in 16 bits.
constexpr const char* kModels[] = {"gpt2-4b", "gpt2-20b"};
// Rates by number of ranks: tables 4 and 5 of Elixir v2, the constants of its code, and what the
// two-core host of this project's benchmarks copies and updates.
struct Machine {
  uint32_t ranks;
  SimulatedMachine rates;
};
std::vector<Machine> Machines() {
  std::vector<Machine> machines{{1, {22, 16, 5}},       {2, {50, 40, 6.5}}, {4, {70, 60, 7.5}},
                                {1, {12, 13, 3.7}},     {2, {12, 13, 5.6}}, {4, {25, 26, 5}},
                                {2, {3.46, 3.24, 0.42}}};
  for (const uint32_t n : {1U, 2U, 4U, 8U})
    machines.push_back({n, {16.3 * n + 8.7, 15.8 * n + 2.3, 1.66 * std::log(n) + 5.15}});
  return machines;
}
// Between ranks, as a multiple of a rank's share of the host's rate; 0: at once.
constexpr double kBetween[] = {0, 0.5};
// Memory for blocks, between what the order needs at least (0) and a block a chunk (1).
constexpr double kRooms[] = {0, 0.1, 0.6, 1};
// Computing, as a multiple of the time that fetching all parameters once takes.
constexpr double kComputing[] = {0.3, 3};

// A model on so many ranks: its layout and order, and what the planners say.
struct Planned {
  ChunkLayout layout;
  AccessSchedule order;
  std::vector<PlanWay> presets;
  SearchInput input;
};

// Each parameter is read in forward, and in backward in reverse, where its gradient follows. The
// token embedding is also the head.
UseTrace TraceOf(const std::vector<ParameterNote>& notes) {
  UseTrace trace;
  const auto use = [&trace](uint32_t note) {
    trace.events.push_back({UseEvent::Kind::kBegin, {note}});
    trace.events.push_back({UseEvent::Kind::kEnd, {}});
  };
  const auto count = static_cast<uint32_t>(notes.size());
  for (uint32_t note = 0; note < count; ++note) use(note);
  use(0);
  use(0);
  for (uint32_t note = count; note-- > 0;) {
    use(note);
    trace.events.push_back({UseEvent::Kind::kGradient, {note}});
  }
  return trace;
}

Planned PlanFor(const char* model, uint32_t ranks) {
  Planned planned;
  const std::vector<ParameterNote> notes = GptParameters(FindGptPreset(model).value());
  LayoutOptions options;
  options.dtype = DType::kBF16;
  options.world = ranks;
  planned.layout = BuildLayout(notes, options).value();
  planned.order = ForeseeOrder(TraceOf(notes), planned.layout, 0, 1);

  // As trainer/advice/rcache_choice.cpp asks for blocks: without rates no states are weighed.
  planned.input.ranks = ranks;
  planned.input.block_bytes = planned.layout.BlockBytes();
  for (ChunkId chunk = 0; chunk < planned.layout.chunks.size(); ++chunk)
    planned.input.chunks.push_back({.elements = planned.layout.chunks[chunk].elements});
  planned.input.sizes = SizesOf(planned.order, EvictableMask(planned.layout));
  planned.presets = PresetWays({&planned.order, &planned.layout, 0}, /*prefetches=*/true);
  return planned;
}

class Point {
 public:
  Point(const Planned& planned, const Machine& machine, double between, double computing)
      : planned_(planned), machine_(machine.rates) {
    machine_.between = between * machine_.to_device / machine.ranks;
    const double bytes = static_cast<double>(planned.layout.TotalBytes()),
                 uses = static_cast<double>(planned.order.moments.size());
    step_.seconds_of_use = computing * bytes / machine_.to_device / 1e9 / uses;
    step_.order = &planned.order;
    step_.layout = &planned.layout;
  }

  double Seconds(const std::string& name, Exchange exchange, uint64_t blocks, bool at_once) const {
    SimulatedStep step = step_;
    step.blocks = blocks;
    step.whole = exchange == Exchange::kReplicated;
    step.updates_at_once = at_once;
    const SimulatedResult result = SimulateStep(step, machine_);

    const PlanWay way = WayWith(name, exchange, blocks, {&planned_.order, &planned_.layout, 0});
    EXPECT_EQ(result.bytes_up, way.step.fetched) << name;
    EXPECT_EQ(result.bytes_down, way.step.handed_in) << name;
    EXPECT_LE(result.blocks_max, blocks) << name;
    return result.seconds;
  }

 private:
  const Planned& planned_;
  SimulatedMachine machine_;
  SimulatedStep step_;
};

// What became of the grid.
struct Count {
  uint64_t points = 0, better = 0;
  double worst = 0;  // auto's time over the best preset's
  std::string worst_at;
};

void Judge(const Planned& planned, const Point& point, double room, const std::string& name,
           Count* count) {
  const uint64_t least = planned.input.sizes.front().blocks,
                 most = planned.input.sizes.back().blocks;
  const auto blocks = least + static_cast<uint64_t>(room * static_cast<double>(most - least));
  SearchInput input = planned.input;
  input.allowed_bytes = blocks * input.block_bytes;
  const uint64_t chosen = Search(input).value().best.blocks;

  for (const bool at_once : {true, false}) {
    const double seconds = point.Seconds("auto", Exchange::kSharded, chosen, at_once);
    double best = INFINITY;
    for (const PlanWay& way : planned.presets) {
      if (way.blocks_min > blocks) continue;
      best = std::min(best,
                      point.Seconds(way.name, way.exchange, std::min(way.blocks, blocks), at_once));
    }
    EXPECT_LE(seconds, best * kWorseAtMost) << name;
    ++count->points;
    count->better += seconds * kWorseAtMost < best;
    if (seconds / best > count->worst) count->worst = seconds / best, count->worst_at = name;
  }
}

TEST(PlanGrid, AutoIsNeverWorseThanTheBestPreset) {
  Count count;
  for (const char* model : kModels) {
    std::map<uint32_t, Planned> by_ranks;
    for (const Machine& machine : Machines()) {
      if (!by_ranks.contains(machine.ranks))
        by_ranks.emplace(machine.ranks, PlanFor(model, machine.ranks));
      const Planned& planned = by_ranks.at(machine.ranks);
      for (const double between : kBetween) {
        if (machine.ranks == 1 && between > 0) continue;
        for (const double computing : kComputing) {
          const Point point(planned, machine, between, computing);
          for (const double room : kRooms) {
            const std::string name = std::string(model) + ", " + std::to_string(machine.ranks) +
                                     " ranks, " + std::to_string(machine.rates.to_device) +
                                     " GB/s, between " + std::to_string(between) + ", computing " +
                                     std::to_string(computing) + ", room " + std::to_string(room);
            Judge(planned, point, room, name, &count);
          }
        }
      }
    }
  }
  EXPECT_GE(count.points, 500U);
  EXPECT_GT(count.better, 0U) << "then presets would do";
  RecordProperty("points", std::to_string(count.points));
  RecordProperty("better by more than 1 %", std::to_string(count.better));
  RecordProperty("worst", std::to_string(count.worst) + " at " + count.worst_at);
}

}  // namespace plan_grid_test
}  // namespace tidepool::trainer

// Presets: what each moves, in Elixir v2's table 1 as corrected, and which of them a limit allows.
#include "trainer/plan/presets.h"

#include <gtest/gtest.h>

#include "trainer/advice/plan_choice.h"
#include "trainer/layout/build_layout.h"
#include "trainer/layout/chunk_traffic.h"
#include "trainer/plan/use_trace.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace presets_test {

constexpr uint64_t kLayers = 24, kElements = 3840, kChunk = 4 * kElements;  // L_c is 4: fp32

// One parameter a chunk and a layer, all of one size: S is M.
ChunkLayout LayoutFor(uint32_t world) {
  std::vector<ParameterNote> notes;
  for (uint64_t layer = 0; layer < kLayers; ++layer)
    notes.push_back({.name = "p" + std::to_string(layer), .dims = {kElements}});
  LayoutOptions options;
  options.world = world;
  options.chunk_bytes = kChunk;
  return BuildLayout(notes, options).value();
}

// Forward through all layers, and back: each once (the common computation graph, section 4.3).
AccessSchedule OrderOf(const ChunkLayout& layout, uint32_t micro_batches = 1) {
  UseTrace trace;
  const auto use = [&trace](uint32_t note) {
    trace.events.push_back({UseEvent::Kind::kBegin, {note}});
    trace.events.push_back({UseEvent::Kind::kEnd, {}});
  };
  for (uint32_t note = 0; note < kLayers; ++note) use(note);
  for (uint32_t note = kLayers; note-- > 0;) {
    use(note);
    trace.events.push_back({UseEvent::Kind::kGradient, {note}});
  }
  return ForeseeOrder(trace, layout, 0, micro_batches);
}

std::vector<PlanWay> WaysOf(uint32_t world, uint32_t micro_batches = 1) {
  const ChunkLayout layout = LayoutFor(world);
  const AccessSchedule order = OrderOf(layout, micro_batches);
  return PresetWays({&order, &layout, 0}, /*prefetches=*/false);
}

// Elixir v2, table 1, with offload, of N ranks in units of L_c S. The corrections: bytes between
// ranks carry (N - 1) / N; an eviction writes nothing, so that rCache-min brings parameters twice
// and gradients once (3, where the table prints 4); DDP's states are at the server, to which the
// table gives no traffic.
TEST(Presets, VolumesAreThoseOfTheCorrectedTable) {
  constexpr uint64_t kModel = kLayers * kChunk;  // L_c S
  for (const uint64_t n : {1u, 2u, 3u, 4u, 8u}) {
    SCOPED_TRACE(n);
    const std::vector<PlanWay> ways = WaysOf(static_cast<uint32_t>(n));
    ASSERT_EQ(ways.size(), 3u);
    const GroupTraffic &ddp = ways[0].step, &zero2 = ways[1].step, &zero3 = ways[2].step;

    // Between ranks, all of them together, times N / (N - 1) where there are several.
    const auto between = [n](uint64_t of_one) { return n == 1 ? of_one : of_one * n / (n - 1); };
    EXPECT_EQ(between(ddp.reduced), n == 1 ? 0 : 2 * kModel) << "2 L_c M";
    EXPECT_EQ(ddp.gathered + ddp.scattered, 0u);
    EXPECT_EQ(between(zero2.between_ranks()), n == 1 ? 0 : 2 * kModel) << "2 L_c S";

    // The chunk that forward used last is there when backward begins.
    const uint64_t kept = ways[2].blocks * kChunk;
    EXPECT_EQ(ways[2].blocks, 1u);
    EXPECT_EQ(between(zero3.between_ranks()), n == 1 ? 0 : 3 * kModel - kept) << "3 L_c S";

    // Host and device: all ranks together.
    EXPECT_EQ(n * (zero2.fetched + zero2.handed_in), 2 * kModel) << "2 L_c S";
    EXPECT_EQ(n * (zero3.fetched + zero3.handed_in), 3 * kModel - kept) << "3 L_c S";
    EXPECT_EQ(n * ddp.fetched, n * kModel) << "each rank brings all";
    EXPECT_EQ(n * ddp.handed_in, kModel);
  }
}

TEST(Presets, RoomForMoreBlocksMovesLessBetweenTheTwoEnds) {
  const ChunkLayout layout = LayoutFor(2);
  const AccessSchedule order = OrderOf(layout);
  for (uint64_t blocks = 1; blocks <= kLayers; ++blocks) {
    const PlanWay way = WayWith("auto", Exchange::kSharded, blocks, {&order, &layout, 0});
    EXPECT_EQ(2 * way.step.fetched, (2 * kLayers - blocks) * kChunk);
    EXPECT_EQ(way.rcache_bytes, layout.RcacheBytes(0, blocks));
  }
}

// Gradients lie over parameters, so that every micro-batch fetches anew.
TEST(Presets, EveryMicroBatchMovesAsMuchAsOne) {
  const std::vector<PlanWay> one = WaysOf(2, 1), three = WaysOf(2, 3);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(three[i].step.fetched, 3 * one[i].step.fetched) << one[i].name;
    EXPECT_EQ(three[i].step.between_ranks(), 3 * one[i].step.between_ranks()) << one[i].name;
  }
}

class ChosenPreset : public ::testing::Test {
 protected:
  Result<PlanChoice> Choose(const std::string& name, uint64_t limit) const {
    const RankStep step{&order_, &layout_, 0};
    return ChoosePreset(name, PresetWays(step, /*prefetches=*/true),
                        RcacheLimit{limit, "--rcache 1MiB"}, step);
  }

  const ChunkLayout layout_ = LayoutFor(2);
  const AccessSchedule order_ = OrderOf(layout_);
};

TEST_F(ChosenPreset, TakesWhatItNeedsAndNoMore) {
  const uint64_t all = layout_.RcacheBytes(0, kLayers);
  EXPECT_EQ(Choose("zero2", 2 * all)->way.rcache_bytes, all);
  EXPECT_EQ(Choose("ddp", all)->way.exchange, Exchange::kReplicated);
  EXPECT_EQ(Choose("zero3", all)->way.blocks, 1 + kBlocksAhead);
  EXPECT_EQ(Choose("zero3", layout_.RcacheBytes(0, 2))->way.blocks, 2u) << "less is fetched ahead";
}

TEST_F(ChosenPreset, ThatDoesNotFitIsAnErrorWithTheNumberThatWould) {
  const uint64_t all = layout_.RcacheBytes(0, kLayers), one = layout_.RcacheBytes(0, 1);
  for (const char* name : {"ddp", "zero2"}) {
    const Result<PlanChoice> choice = Choose(name, all - 1);
    ASSERT_FALSE(choice.ok());
    EXPECT_EQ(choice.status().id(), ErrorId::kRcacheTooSmall);
    const std::string text = choice.status().Format();
    EXPECT_NE(text.find("--plan " + std::string(name)), std::string::npos) << text;
    EXPECT_NE(text.find("give --rcache " + std::to_string(all) + " or more"), std::string::npos)
        << text;
    EXPECT_NE(text.find("--plan zero3, which needs " + std::to_string(one)), std::string::npos)
        << text;
  }
  EXPECT_NE(Choose("zero3", one - 1).status().Format().find("or a smaller --chunk-size"),
            std::string::npos);
  EXPECT_EQ(Choose("zero4", all).status().id(), ErrorId::kUsageError);
}

// --chunk-size traffic, as a run reads it: the size suits the rCache that was given.
TEST(ChunkSizeByTraffic, MovesNoMoreThanLeastWasteInTheSameRcache) {
  for (const char* rcache : {"15%", "25%", "50%", "12MiB"}) {
    SCOPED_TRACE(rcache);
    RunOptions options;
    options.memory.rcache = rcache;
    const auto moved = [&options](const char* size) {
      options.memory.chunk_size = size;
      Result<RunPlan> plan = MakeRunPlan(options, 2, 0, "traffic");
      EXPECT_TRUE(plan.ok()) << plan.status().Format();
      const uint64_t chunks = plan->layout.EvictableChunks(0), blocks = plan->rcache.blocks;
      EXPECT_GE(blocks, 1u);
      return (FetchesOfStep(chunks, blocks) + chunks) * plan->layout.BlockBytes();
    };
    // A block may be rounded otherwise than the search has it.
    EXPECT_LE(static_cast<double>(moved("traffic")), 1.02 * static_cast<double>(moved("auto")));
  }
}

}  // namespace presets_test
}  // namespace tidepool::trainer

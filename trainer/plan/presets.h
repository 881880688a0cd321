// Presets: the settings of an rCache that others know as DDP, ZeRO-2 and ZeRO-3, and what a step
// moves under each.
//
// Any thread; values and pure functions. States and updates are at the server under each of them.
//   ddp    every chunk has a block, and each rank fetches the whole of it; gradients are
//          all-reduced, and each rank hands its shard of the sums in;
//   zero2  every chunk has a block; each rank fetches its shard, the others are gathered once a
//          micro-batch; gradients are reduce-scattered;
//   zero3  the same with as few blocks as the order of use needs: chunks are gathered again in
//          backward.
// Gradients lie over parameters (Elixir v2, section 4.1), so that each micro-batch fetches anew.
// Source: Elixir v1, section VI-B ([F,F,inf], [T,F,inf] and [T,F,C]); Elixir v2, table 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/access_schedule.h"
#include "trainer/plan/traffic.h"

namespace tidepool::trainer {

// Blocks beside the fewest, into which zero3 fetches ahead.
inline constexpr uint64_t kBlocksAhead = 2;

// The order of a rank's step, which outlives the values that are made of it. The rank has nothing
// in its rCache when the step begins: each step is of a new version. Frozen chunks may be there, so
// that with adapters what a step moves is the most.
struct RankStep {
  const AccessSchedule* order = nullptr;
  const ChunkLayout* layout = nullptr;
  Rank rank = 0;
};

// One way to run a step.
struct PlanWay {
  std::string name;
  Exchange exchange = Exchange::kSharded;
  uint64_t blocks = 0, blocks_min = 0;  // that it takes; with which it would do
  uint64_t rcache_bytes = 0, rcache_bytes_min = 0;
  GroupTraffic step = {};  // of one rank
};

// The way of that name with so many blocks. Requires that the order runs in them.
PlanWay WayWith(std::string name, Exchange exchange, uint64_t blocks, const RankStep& step);
// ddp, zero2 and zero3, in this order.
std::vector<PlanWay> PresetWays(const RankStep& step, bool prefetches);
// The one of that name; null: there is none.
const PlanWay* FindWay(const std::vector<PlanWay>& ways, std::string_view name);

}  // namespace tidepool::trainer

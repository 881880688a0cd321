// Presets: the rCache settings known elsewhere as DDP, ZeRO-2 and ZeRO-3, and the traffic of a step
// under each.
//
// Any thread; values and pure functions. Under all presets, states and updates are at the server.
//  ddp    every chunk has a block, and each rank fetches all of it; gradients are all-reduced,
//         and each rank submits its shard of the sums;
//  zero2  every chunk has a block; each rank fetches its shard, and the others are gathered once
//         per micro-batch; gradients are reduce-scattered;
//  zero3  like zero2, with as few blocks as the order of use needs: chunks are gathered again in
//         backward.
// Gradients overwrite parameters (Elixir v2, section 4.1), so each micro-batch fetches again.
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

// Blocks beyond the minimum, into which zero3 prefetches.
inline constexpr uint64_t kBlocksAhead = 2;

// The order of a rank's step; outlives values made from it. The rCache is empty at the start of a
// step, because each step has a new version. Frozen chunks may still be there, so with adapters the
// traffic of a step is an upper bound.
struct RankStep {
  const AccessSchedule* order = nullptr;
  const ChunkLayout* layout = nullptr;
  Rank rank = 0;
};

// One way to run a step.
struct PlanWay {
  std::string name;
  Exchange exchange = Exchange::kSharded;
  uint64_t blocks = 0, blocks_min = 0;  // number used; the smallest possible number
  uint64_t rcache_bytes = 0, rcache_bytes_min = 0;
  GroupTraffic step = {};  // per rank
};

// The way of that name with this number of blocks, in which the order must be able to run.
PlanWay WayWith(std::string name, Exchange exchange, uint64_t blocks, const RankStep& step);
// ddp, zero2 and zero3, in this order.
std::vector<PlanWay> PresetWays(const RankStep& step, bool prefetches);
// The way of that name; null if none.
const PlanWay* FindWay(const std::vector<PlanWay>& ways, std::string_view name);

}  // namespace tidepool::trainer

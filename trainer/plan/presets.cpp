#include "trainer/plan/presets.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::trainer {

PlanWay WayWith(std::string name, Exchange exchange, uint64_t blocks, const RankStep& step) {
  const ChunkLayout& layout = *step.layout;
  const Result<Plan> plan = BeladySimulate(*step.order, {EvictableMask(layout), blocks, {}});
  TP_CHECK(plan.ok(), "the order runs in so many blocks");

  PlanWay way{.name = std::move(name), .exchange = exchange, .blocks = blocks};
  way.blocks_min = blocks;
  way.rcache_bytes = std::max(layout.RcacheBytes(step.rank, blocks), kPageBytes);
  way.rcache_bytes_min = way.rcache_bytes;
  way.step = SumOf(GroupTrafficOf(plan.value(), layout, exchange));
  return way;
}

std::vector<PlanWay> PresetWays(const RankStep& step, bool prefetches) {
  const ChunkLayout& layout = *step.layout;
  const uint64_t all = layout.EvictableChunks(step.rank),
                 least = SmallestRcache(*step.order, EvictableMask(layout)),
                 few = std::min(all, least + (prefetches ? kBlocksAhead : 0));

  std::vector<PlanWay> ways{WayWith("ddp", Exchange::kReplicated, all, step),
                            WayWith("zero2", Exchange::kSharded, all, step),
                            WayWith("zero3", Exchange::kSharded, few, step)};
  ways.back().blocks_min = least;
  ways.back().rcache_bytes_min = std::max(layout.RcacheBytes(step.rank, least), kPageBytes);
  return ways;
}

const PlanWay* FindWay(const std::vector<PlanWay>& ways, std::string_view name) {
  const auto found = std::find_if(ways.begin(), ways.end(),
                                  [name](const PlanWay& way) { return way.name == name; });
  return found == ways.end() ? nullptr : &*found;
}

}  // namespace tidepool::trainer

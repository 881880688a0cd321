#include "trainer/module/module_way.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/units.h"
#include "trainer/advice/plan_choice.h"
#include "trainer/plan/access_schedule.h"
#include "trainer/plan/presets.h"
#include "trainer/plan/use_trace.h"

namespace tidepool::trainer {
namespace {

// Numbers of blocks of a plan: what it takes, and the fewest with which it works.
struct Blocks {
  uint64_t wanted = 0, least = 0;
};

// The order of a profiled step; nullopt without a profile.
std::optional<AccessSchedule> OrderOf(const ChunkLayout& layout, const RunOptions& run, Rank rank,
                                      const AutoRcache& what) {
  if (what.profile == nullptr) return std::nullopt;
  return ForeseeOrder(what.profile->trace, layout, rank, run.training.micro_batches);
}

Result<Blocks> BlocksOf(const ChunkLayout& layout, const RunOptions& run, const RankPlace& place,
                        const AutoRcache& what) {
  const std::string& plan = run.memory.plan;
  const uint64_t all = layout.EvictableChunks(place.rank);
  if (plan == "ddp" || plan == "zero2") return Blocks{all, all};

  const std::optional<AccessSchedule> order = OrderOf(layout, run, place.rank, what);
  if (!order && plan == kAutoPlan) return Blocks{all, std::min<uint64_t>(all, 1)};
  if (!order) {
    return Status(ErrorId::kUsageError, "plan " + plan +
                                            " needs the order in which the model uses "
                                            "its parameters, and no profile has it")
        .Where("plan")
        .Why("it takes as few blocks as that order allows")
        .Fix("give an example of a batch (example=...), or plan \"auto\" with an rcache");
  }

  const uint64_t least = SmallestRcache(*order, EvictableMask(layout));
  if (plan == kAutoPlan) return Blocks{all, least};
  if (plan == "zero3") return Blocks{std::min(all, least + kBlocksAhead), least};
  return Status(ErrorId::kUsageError, "there is no plan \"" + plan + "\"")
      .Where("plan")
      .Fix("choose ddp, zero2, zero3 or auto");
}

}  // namespace

Result<ModuleWay> PlanModuleWay(const ChunkLayout& layout, const RunOptions& run,
                                const RankPlace& place, const AutoRcache& what) {
  ModuleWay way;
  const std::string &plan = run.memory.plan, &rcache = run.memory.rcache;
  if (plan.empty() || (plan == kAutoPlan && rcache == "auto")) {
    TP_ASSIGN_OR_RETURN(way.rcache, PlanModuleRcache(layout, run, place, what));
    return way;
  }

  TP_ASSIGN_OR_RETURN(Blocks blocks, BlocksOf(layout, run, place, what));
  if (plan == "ddp") way.exchange = Exchange::kReplicated;

  if (rcache != "auto") {
    TP_ASSIGN_OR_RETURN(const RcachePlan limit, PlanRcache(layout, place.rank, rcache));

    if (limit.blocks < blocks.least) {
      const uint64_t fits = layout.RcacheBytes(place.rank, blocks.least);
      return Status(ErrorId::kRcacheTooSmall, "plan " + plan + " needs an rCache of " +
                                                  std::to_string(fits) + " bytes (" +
                                                  FormatBytes(fits) + "), and rcache " + rcache +
                                                  " is " + FormatBytes(limit.bytes))
          .Where("plan, rcache")
          .Fix("give rcache=" + std::to_string(fits) +
               " or more, or plan \"auto\", which takes what there is room for");
    }
    blocks.wanted = std::min(blocks.wanted, limit.blocks);
  }

  const uint64_t bytes = std::max(layout.RcacheBytes(place.rank, blocks.wanted), kPageBytes);
  TP_ASSIGN_OR_RETURN(way.rcache, PlanRcache(layout, place.rank, std::to_string(bytes)));
  return way;
}

}  // namespace tidepool::trainer

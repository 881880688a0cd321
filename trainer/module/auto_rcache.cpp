#include "trainer/module/auto_rcache.h"

#include <algorithm>
#include <string>

#include "base/units.h"
#include "trainer/advice/device_memory.h"
#include "trainer/advice/device_place.h"
#include "trainer/advice/rcache_choice.h"
#include "trainer/plan/presets.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kLeastBytes = 64 * kMiB;

Result<RcachePlan> WithBlocks(const ChunkLayout& layout, Rank rank, uint64_t bytes) {
  return PlanRcache(layout, rank, std::to_string(layout.ResidentBytes(rank) + bytes));
}

ChoiceTask TaskOf(const ChunkLayout& layout, const RunOptions& run, const RankPlace& place,
                  const AutoRcache& what) {
  ChoiceTask task;
  task.layout = &layout;
  task.profile = what.profile;
  task.rank = place.rank;
  task.micro_batches = run.training.micro_batches;
  task.optimizer = what.optimizer;
  if (!what.memory) return task;

  task.device_updates = true;
  task.room.capacity = what.memory->capacity;
  task.room.taken = what.memory->taken;
  task.room.spare = SpareBytes(layout);
  task.room_origin = what.memory->origin;
  return task;
}

}  // namespace

std::optional<DeviceMemory> MemoryToPlan(const RunOptions& run, const RankPlace& place) {
  if (run.memory.rcache != "auto" || place.world > 1) return std::nullopt;
  const Result<DeviceWish> wish = ParseDeviceWish(run.device.name);
  if (!wish.ok() || wish.value().kind == DeviceWish::Kind::kCpu) return std::nullopt;
  Result<DeviceMemory> found = AskGpu(wish.value(), place);
  if (!found.ok()) return std::nullopt;
  return std::move(found).value();
}

Result<RcachePlan> PlanModuleRcache(const ChunkLayout& layout, const RunOptions& run,
                                    const RankPlace& place, const AutoRcache& what) {
  if (run.memory.rcache != "auto") return PlanRcache(layout, place.rank, run.memory.rcache);
  if (what.held_bytes > 0) return PlanRcache(layout, place.rank, std::to_string(what.held_bytes));

  const uint64_t evictable = layout.EvictableChunks(place.rank);
  uint64_t blocks = evictable / 4;
  const bool on_host = run.device.name == "cpu";
  const bool known = what.profile != nullptr && what.profile->arithmetic > 0;
  if (known && place.world == 1 && evictable > 0 && (on_host || what.memory)) {
    const ChoiceTask task = TaskOf(layout, run, place, what);
    if (on_host) {
      blocks = std::min(ChooseHostBlocks(task) + kBlocksAhead, evictable);
    } else if (const Result<RcacheChoice> choice = ChooseRcache(task); choice.ok()) {
      return WithBlocks(layout, place.rank, choice.value().share.blocks * layout.BlockBytes());
    }
  }

  return WithBlocks(layout, place.rank,
                    std::max({blocks * layout.BlockBytes(), kLeastBytes, 4 * layout.BlockBytes()}));
}

}  // namespace tidepool::trainer

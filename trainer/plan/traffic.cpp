#include "trainer/plan/traffic.h"

#include "base/check.h"

namespace tidepool::trainer {

GroupTraffic& GroupTraffic::operator+=(const GroupTraffic& other) {
  fetched += other.fetched;
  handed_in += other.handed_in;
  gathered += other.gathered;
  scattered += other.scattered;
  reduced += other.reduced;
  return *this;
}

GroupTraffic& GroupTraffic::operator-=(const GroupTraffic& other) {
  fetched -= other.fetched;
  handed_in -= other.handed_in;
  gathered -= other.gathered;
  scattered -= other.scattered;
  reduced -= other.reduced;
  return *this;
}

GroupTraffic TrafficOfFetch(const ChunkLayout& layout, ChunkId chunk, Exchange exchange) {
  if (exchange == Exchange::kReplicated) return {.fetched = layout.ChunkBytes(chunk)};
  const uint64_t shard = layout.ShardBytes(chunk);
  return {.fetched = shard, .gathered = (layout.ShardCount(chunk) - 1) * shard};
}

GroupTraffic TrafficOfSubmit(const ChunkLayout& layout, ChunkId chunk, Exchange exchange) {
  const uint64_t shard = layout.ShardBytes(chunk), others = (layout.ShardCount(chunk) - 1) * shard;
  if (exchange == Exchange::kReplicated) return {.handed_in = shard, .reduced = 2 * others};
  return {.handed_in = shard, .scattered = others};
}

std::vector<GroupTraffic> GroupTrafficOf(const Plan& plan, const ChunkLayout& layout,
                                         Exchange exchange) {
  std::vector<GroupTraffic> groups(layout.data_groups.size());
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    GroupTraffic& group = groups[layout.chunks[chunk].data_group];
    for (uint32_t i = 0; i < plan.fetches_of_chunk[chunk]; ++i)
      group += TrafficOfFetch(layout, chunk, exchange);
    for (uint32_t i = 0; i < plan.submits_of_chunk[chunk]; ++i)
      group += TrafficOfSubmit(layout, chunk, exchange);
  }
  return groups;
}

GroupTraffic SumOf(const std::vector<GroupTraffic>& groups) {
  GroupTraffic sum;
  for (const GroupTraffic& group : groups) sum += group;
  return sum;
}

std::vector<GroupTraffic> Difference(std::vector<GroupTraffic> now,
                                     const std::vector<GroupTraffic>& before) {
  TP_CHECK(now.size() == before.size(), "both counts are of one layout");
  for (size_t group = 0; group < now.size(); ++group) now[group] -= before[group];
  return now;
}

}  // namespace tidepool::trainer

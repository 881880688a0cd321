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

std::vector<GroupTraffic> GroupTrafficOf(const Plan& plan, const ChunkLayout& layout,
                                         Exchange exchange, const LeftOut& left_out) {
  if (left_out.passed_by.empty() && left_out.at_begin.empty())
    return GroupTrafficOf(plan, layout, exchange);

  std::vector<GroupTraffic> groups(layout.data_groups.size());
  std::vector<bool> lacking(layout.chunks.size(), false);

  for (const ChunkId chunk : left_out.at_begin) lacking[chunk] = true;
  const auto group_of = [&](ChunkId chunk) -> GroupTraffic& {
    return groups[layout.chunks[chunk].data_group];
  };
  const auto need = [&](ChunkId chunk) {
    if (lacking[chunk]) group_of(chunk) += TrafficOfFetch(layout, chunk, exchange);
    lacking[chunk] = false;
  };

  auto step = plan.steps.begin();
  auto passed_by = left_out.passed_by.begin();
  for (uint64_t at = 0; at < left_out.order->moments.size(); ++at) {
    const Moment& moment = left_out.order->moments[at];
    for (; step != plan.steps.end() && step->needed_at == at; ++step) {
      if (step->chunk != kNoChunk) lacking[step->chunk] = step->fetch;
    }

    if (passed_by != left_out.passed_by.end() && *passed_by == at) {
      ++passed_by;
      if (moment.kind == MomentKind::kSubmit && left_out.zeros_move)
        group_of(moment.subject).handed_in += layout.ShardBytes(moment.subject);
      continue;
    }

    for (const ChunkId chunk : moment.chunks) need(chunk);
    if (moment.kind == MomentKind::kGradient) need(moment.subject);
    if (moment.kind == MomentKind::kSubmit)
      group_of(moment.subject) += TrafficOfSubmit(layout, moment.subject, exchange);
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

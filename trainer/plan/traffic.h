// GroupTraffic: the bytes one rank moves in a step, by data group and kind, planned or counted.
//
// Any thread; values and pure functions. Host to device and back: copies between the server and the
// rank's rCache. Between ranks: bytes that this rank sends to the others of its group. In a group
// of G ranks, ring and direct exchange send the same amount: (G - 1) shards for an all-gather or a
// reduce-scatter, the sum of both for an all-reduce. All ranks together send G - 1 times the chunk
// in each of the two.
// Source: Elixir v1, section VI-B, and Elixir v2, table 1, whose volumes leave out the factor (G -
// 1) / G.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {

// How the ranks of a data group share the bytes of a chunk that each of them uses in full.
enum class Exchange : uint8_t {
  // Each rank fetches its shard, an all-gather brings the others; gradients are reduce-scattered
  // (ZeRO-2 and ZeRO-3).
  kSharded,
  // Each rank fetches the whole chunk without a gather; gradients are all-reduced (DDP). The
  // server's states are still sharded, so each rank submits its own shard.
  kReplicated,
};

// One rank's traffic in one data group, in bytes.
struct GroupTraffic {
  uint64_t fetched = 0;    // host to device: parameters
  uint64_t handed_in = 0;  // device to host: gradients
  uint64_t gathered = 0;   // between ranks: all-gathers of parameters
  uint64_t scattered = 0;  // between ranks: reduce-scatters of gradients
  uint64_t reduced = 0;    // between ranks: all-reduces of gradients

  GroupTraffic& operator+=(const GroupTraffic& other);
  GroupTraffic& operator-=(const GroupTraffic& other);
  // All bytes sent to other ranks.
  uint64_t between_ranks() const { return gathered + scattered + reduced; }
  friend bool operator==(const GroupTraffic&, const GroupTraffic&) = default;
};

// The traffic of one fetch (below: one submission) of the chunk.
GroupTraffic TrafficOfFetch(const ChunkLayout& layout, ChunkId chunk, Exchange exchange);
GroupTraffic TrafficOfSubmit(const ChunkLayout& layout, ChunkId chunk, Exchange exchange);

// The traffic of a plan, by data group.
std::vector<GroupTraffic> GroupTrafficOf(const Plan& plan, const ChunkLayout& layout,
                                         Exchange exchange);
// What a pass left out of its plan.
struct LeftOut {
  const AccessSchedule* order = nullptr;  // of which the plan is
  // Moments that it passed by, ascending: they needed no chunk, and submitted zeros.
  std::span<const uint64_t> passed_by = {};
  std::span<const ChunkId> at_begin = {};  // chunks that the plan begins with, and the pass lacked
  bool zeros_move = false;                 // zeros are submitted as bytes
};
// The traffic of such a pass: a chunk is fetched where it is first needed in its block.
std::vector<GroupTraffic> GroupTrafficOf(const Plan& plan, const ChunkLayout& layout,
                                         Exchange exchange, const LeftOut& left_out);
// The sum over all groups.
GroupTraffic SumOf(const std::vector<GroupTraffic>& groups);
// Requires that both have the same groups.
std::vector<GroupTraffic> Difference(std::vector<GroupTraffic> now,
                                     const std::vector<GroupTraffic>& before);

}  // namespace tidepool::trainer

// GroupTraffic: the bytes that one rank moves in a step, by data group and kind: what a plan says
// (theory) and what a run counts have the same form.
//
// Any thread; values and pure functions. Host to device and back: copies between the server and the
// rank's rCache. Between ranks: bytes that this rank sends to the others of its group. Of G ranks a
// ring and a direct exchange send alike: an all-gather and a reduce-scatter (G - 1) shards each, an
// all-reduce both. All ranks of a group together send G - 1 times the chunk in each of the two.
// Source: Elixir v1, section VI-B, and Elixir v2, table 1, whose volumes leave out the factor
// (G - 1) / G.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {

// How the ranks of a data group share the bytes of a chunk that each of them uses whole.
enum class Exchange : uint8_t {
  // Each rank fetches its shard, an all-gather brings the others; gradients are reduce-scattered
  // (ZeRO-2 and ZeRO-3).
  kSharded,
  // Each rank fetches the whole chunk, and nothing is gathered; gradients are all-reduced (DDP).
  // The server's states are in shards all the same, so that each rank hands in its own.
  kReplicated,
};

// What one rank moves in one data group, in bytes.
struct GroupTraffic {
  uint64_t fetched = 0;    // host to device: parameters
  uint64_t handed_in = 0;  // device to host: gradients
  uint64_t gathered = 0;   // between ranks: all-gathers of parameters
  uint64_t scattered = 0;  // between ranks: reduce-scatters of gradients
  uint64_t reduced = 0;    // between ranks: all-reduces of gradients

  GroupTraffic& operator+=(const GroupTraffic& other);
  GroupTraffic& operator-=(const GroupTraffic& other);
  // All that goes to other ranks.
  uint64_t between_ranks() const { return gathered + scattered + reduced; }
  friend bool operator==(const GroupTraffic&, const GroupTraffic&) = default;
};

// What one fetch, or one submission, of the chunk moves.
GroupTraffic TrafficOfFetch(const ChunkLayout& layout, ChunkId chunk, Exchange exchange);
GroupTraffic TrafficOfSubmit(const ChunkLayout& layout, ChunkId chunk, Exchange exchange);

// What a plan moves, by data group.
std::vector<GroupTraffic> GroupTrafficOf(const Plan& plan, const ChunkLayout& layout,
                                         Exchange exchange);
// The sum over all groups.
GroupTraffic SumOf(const std::vector<GroupTraffic>& groups);
// Requires that both have the same groups.
std::vector<GroupTraffic> Difference(std::vector<GroupTraffic> now,
                                     const std::vector<GroupTraffic>& before);

}  // namespace tidepool::trainer

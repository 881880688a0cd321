// OperationName, OperationTag: what an operation of a group is for, as its caller knows it, and as
// ranks compare it.
//
// Value types; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidepool::trainer {

// What ranks do together.
enum class OperationKind : uint32_t {
  kAllGather = 1,
  kReduceScatter,
  kBarrier,
  kBroadcast,
  kAllToAll,
};

// Equal on all ranks of the group.
struct OperationName {
  static constexpr uint32_t kNoChunk = UINT32_MAX;

  uint32_t chunk = kNoChunk;  // what moves
  // The operation's place among those of its group in one pass, from 1, in the order of the
  // requests; 0: it belongs to no pass.
  uint32_t place = 0;
  std::string_view of{};  // for people: the chunk's first parameter; outlives the operation
};

// The name with its kind, in a fixed size that goes from rank to rank as it lies in memory.
struct OperationTag {
  uint32_t kind = 0;
  uint32_t chunk = OperationName::kNoChunk;
  uint32_t place = 0;
  std::array<char, 40> of{};  // the end of a longer name; zero bytes behind a shorter one

  bool operator==(const OperationTag&) const = default;
  // "all-gather of chunk 5 (h.3.mlp.up.weight), place 12 of its pass". Any bytes make a text.
  std::string Text() const;
};

// The tag of an operation of this kind.
OperationTag TagOf(OperationKind kind, const OperationName& name);

}  // namespace tidepool::trainer

// OperationName, OperationTag: what an operation of a group is for: as its caller names it, and in
// the form that ranks compare.
//
// Value types; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidepool::trainer {

// The kinds of collective operations.
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

  uint32_t chunk = kNoChunk;  // the chunk that moves
  // The operation's position among those of its group in one pass, from 1, in request order; 0: it
  // belongs to no pass.
  uint32_t place = 0;
  std::string_view of{};  // for people: the chunk's first parameter; outlives the operation
};

// The name with its kind, as a fixed-size record that is sent between ranks as is.
struct OperationTag {
  uint32_t kind = 0;
  uint32_t chunk = OperationName::kNoChunk;
  uint32_t place = 0;
  std::array<char, 40> of{};  // the last characters of a longer name; zero-padded

  bool operator==(const OperationTag&) const = default;
  // "all-gather of chunk 5 (h.3.mlp.up.weight), place 12 of its pass". Safe for any bytes.
  std::string Text() const;
};

// The tag of an operation of this kind.
OperationTag TagOf(OperationKind kind, const OperationName& name);

}  // namespace tidepool::trainer

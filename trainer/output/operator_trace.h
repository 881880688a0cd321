// OperatorTrace: which operators ran in a step, within which others, and what they used.
//
// One thread (the trainer's main thread). Times are the host's clock: on a GPU those of the calls,
// not of the work. So many are kept of a step, and later ones counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace tidepool::trainer {

// What the trace tells of an operator, a layer, or a copy: a slice of a lane.
struct TraceSlice {
  uint64_t lane = 0;
  std::string name;
  int64_t from_ns = 0, to_ns = 0;  // to_ns 0: not seen to end
  int64_t chunk = -1;              // that it moves or uses first; -1: none
};

// "h.3" of "h.3.attn.weight": up to the first number, or all but the last part.
std::string LayerOf(const std::string& parameter);

class OperatorTrace {
 public:
  static constexpr size_t kOperatorsMax = 200'000;

  // `most`: operators of a step that are kept.
  explicit OperatorTrace(const Clock* clock, size_t most = kOperatorsMax)
      : clock_(clock), most_(most) {}

  // Forgets the step before.
  void Clear();
  // An operator, or a node of backward, begins within those that have not ended.
  void Begin(const char* name);
  void End();
  // What began last uses this parameter, and its chunk.
  void Uses(const std::string& parameter, ChunkId chunk);

  // An operator with what it used first.
  struct Operator {
    std::string name;
    int64_t from_ns = 0, to_ns = 0;
    uint32_t depth = 0;
    std::string layer;  // of its first parameter, or of one within it; empty: it uses none
    std::vector<ChunkId> chunks{};
  };
  // In the order in which they began, so that an outer one stands before those within it.
  const std::vector<Operator>& operators() const { return operators_; }
  uint64_t left_out() const { return left_out_; }
  // Stretches of outermost operators that use one layer, or nothing after one that does; none
  // reaches over a moment of `bounds`, which are in order.
  std::vector<TraceSlice> Layers(const std::vector<int64_t>& bounds) const;

 private:
  const Clock* const clock_;
  const size_t most_;
  std::vector<Operator> operators_;
  std::vector<size_t> open_;  // numbers in operators_; most_: one that was left out
  uint64_t left_out_ = 0;
};

}  // namespace tidepool::trainer

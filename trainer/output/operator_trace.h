// OperatorTrace: records the operators of a step, their nesting, and the parameters they use.
//
// One thread (the trainer's main thread). Times are of the host's clock: on a GPU, those of the
// calls, not of the work. It keeps a limited number of operators per step and counts the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace tidepool::trainer {

// An operator, a layer or a copy, as a slice of a lane in the trace.
struct TraceSlice {
  uint64_t lane = 0;
  std::string name;
  int64_t from_ns = 0, to_ns = 0;  // to_ns 0: end not seen
  int64_t chunk = -1;              // the chunk that it moves or uses first; -1: none
};

// The layer of a parameter: its name up to the first number ("h.3" of "h.3.attn.weight"), or
// without its last part if it has no number.
std::string LayerOf(const std::string& parameter);

class OperatorTrace {
 public:
  static constexpr size_t kOperatorsMax = 200'000;

  // `most`: number of operators kept per step. The clock must outlive the object.
  explicit OperatorTrace(const Clock* clock, size_t most = kOperatorsMax)
      : clock_(clock), most_(most) {}

  // Drops the operators of the previous step.
  void Clear();
  // Records the begin of an operator or a backward node, nested in those that have not ended.
  void Begin(const char* name);
  // Records the end of the innermost one.
  void End();
  // Records that the innermost operator uses a parameter, which is in `chunk`.
  void Uses(const std::string& parameter, ChunkId chunk);

  // An operator and the chunks it used.
  struct Operator {
    std::string name;
    int64_t from_ns = 0, to_ns = 0;
    uint32_t depth = 0;
    std::string layer;  // of its first parameter or a nested operator's; empty: none
    std::vector<ChunkId> chunks{};
  };
  // In the order of their begins: an operator precedes those nested in it.
  const std::vector<Operator>& operators() const { return operators_; }
  // Number of operators that were not kept.
  uint64_t left_out() const { return left_out_; }
  // One slice per run of consecutive outermost operators of the same layer; an operator without
  // parameters extends the run before it. No run crosses a time in `bounds`, which ascend.
  std::vector<TraceSlice> Layers(const std::vector<int64_t>& bounds) const;

 private:
  const Clock* const clock_;
  const size_t most_;
  std::vector<Operator> operators_;
  std::vector<size_t> open_;  // indexes into operators_; most_: not kept
  uint64_t left_out_ = 0;
};

}  // namespace tidepool::trainer

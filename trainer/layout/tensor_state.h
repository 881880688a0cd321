// TensorStates: the state of every parameter tensor, and the legal state changes (PatrickStar,
// section 6.2 and table 1).
//
// One thread (the trainer's main thread).
//
//   kFree         the values are nowhere in the rCache (or are being replaced)
//   kHold         present, not used yet
//   kCompute      an operator uses it now
//   kHoldAfterFwd present, used by at least one operator that has ended
//   kHoldAfterBwd its place holds its gradient, or zeros if it has none
//
//   to:            Free   Compute  Hold   AfterFwd  AfterBwd
//   Free            .       .       gather    .         .
//   Compute         .     nested     .     op ends      .
//   Hold          evict   op        .         .      gradient
//   AfterFwd      evict   op       reset      .      gradient
//   AfterBwd      submit    .        .         .         .
//
// A dot is illegal: above all a use after the gradient has arrived, which would read a gradient as
// a parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

enum class TensorState : uint8_t { kFree, kCompute, kHold, kHoldAfterFwd, kHoldAfterBwd };
inline constexpr int kTensorStateCount = 5;

// A state's name, for messages; and the rule of table 1.
const char* NameOf(TensorState state);
bool IsLegalTransition(TensorState from, TensorState to);

class TensorStates {
 public:
  // `layout` must outlive the table. All tensors start kFree.
  explicit TensorStates(const ChunkLayout* layout);

  TensorState state(ParameterId parameter) const { return states_[parameter]; }
  // Errors: kTensorStateIllegal, naming the parameter and both states; nothing changes then.
  Status Change(ParameterId parameter, TensorState to);
  // An operator starts, or ends, using the tensor; uses nest and are counted. Errors:
  // kTensorStateIllegal.
  Status BeginUse(ParameterId parameter);
  Status EndUse(ParameterId parameter);

  // A new pass begins: the chunk's used tensors count as just gathered.
  void BeginPass(ChunkId chunk);

  // Changes all tensors of a chunk. Errors: kTensorStateIllegal, at the first tensor that may not
  // change.
  Status ChangeChunk(ChunkId chunk, TensorState to);
  // True when every tensor of the chunk is in `state`.
  bool AllIn(ChunkId chunk, TensorState state) const;

 private:
  const ChunkLayout* layout_;
  std::vector<TensorState> states_;  // by ParameterId
  std::vector<uint32_t> uses_;       // by ParameterId: operators in flight
};

}  // namespace tidepool::trainer

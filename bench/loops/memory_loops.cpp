#include "bench/loops/memory_loops.h"

#include <cmath>

#include "bench/harness/row.h"
#include "bench/loops/undo_parts.h"

namespace tidepool::bench {

extern const MemoryLoops kLoopsV3, kLoopsV4;
extern const UndoPartLoop kUndoPartV3, kUndoPartV4;

const MemoryLoops& SelectLoops() {
  const optim::IsaLevel best = optim::BestIsa();
  if (best == optim::IsaLevel::kV4) return kLoopsV4;
  if (best != optim::IsaLevel::kV3) Die("the benchmarks' own loops need a CPU with AVX2");
  return kLoopsV3;
}

UndoPartLoop SelectUndoPart() {
  return SelectLoops().isa == optim::IsaLevel::kV4 ? kUndoPartV4 : kUndoPartV3;
}

PeerAdam MakePeerAdam(double lr, double weight_decay, uint64_t step) {
  PeerAdam numbers;
  const auto t = static_cast<double>(step);
  numbers.step_size = static_cast<float>(-lr / (1 - std::pow(0.9, t)));
  numbers.inverse_sqrt_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, t)));
  numbers.weight_step = static_cast<float>(-lr * weight_decay);
  return numbers;
}

}  // namespace tidepool::bench

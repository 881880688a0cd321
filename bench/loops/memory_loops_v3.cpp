#include "bench/loops/memory_loop_bodies.h"

namespace tidepool::bench {

extern const MemoryLoops kLoopsV3;
const MemoryLoops kLoopsV3 = LoopsOf(optim::IsaLevel::kV3);

}  // namespace tidepool::bench

#include "bench/loops/memory_loop_bodies.h"

namespace tidepool::bench {

extern const MemoryLoops kLoopsV4;
const MemoryLoops kLoopsV4 = LoopsOf(optim::IsaLevel::kV4);

}  // namespace tidepool::bench

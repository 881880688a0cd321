#include "memserver/residency/kept/kept_index.h"

namespace tidepool::memserver {

// Layout 1 had no index, so no server could ever continue it. 2 had tiles of one size, and jobs of
// Adam alone. 3 had larger tiles. 4 had no line for each progress word. 5 had no frozen chunks. 6
// had no states that left the host. 7 had no states on GPUs. 8 had no step slots: its jobs continue
// without them (step_slots.h).
const uint32_t kKeptLayout = 9;
const uint32_t kKeptLayoutMin = 8;

}  // namespace tidepool::memserver

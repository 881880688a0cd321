#include "memserver/residency/kept_index.h"

namespace tidepool::memserver {

// 1 had no index, so no server could ever go on with it. 2 had tiles of one size, and jobs of Adam alone.
const uint32_t kKeptLayout = 3;
const uint32_t kKeptLayoutMin = 3;

}  // namespace tidepool::memserver

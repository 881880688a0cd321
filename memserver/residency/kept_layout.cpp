#include "memserver/residency/kept_index.h"

namespace tidepool::memserver {

// 1 had no index, so no server could ever go on with it. 2 had tiles of one size, and jobs of Adam alone. 3 had larger ones.
const uint32_t kKeptLayout = 4;
const uint32_t kKeptLayoutMin = 4;

}  // namespace tidepool::memserver

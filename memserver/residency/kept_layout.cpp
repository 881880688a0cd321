#include "memserver/residency/kept_index.h"

namespace tidepool::memserver {

// 1 had no index, so no server could ever go on with it. 2 had tiles of one size, and jobs of Adam alone. 3 had larger ones. 4 had no
// line for each progress word. 5 had no frozen chunks. 6 had no states that
// left the host.
const uint32_t kKeptLayout = 7;
const uint32_t kKeptLayoutMin = 7;

}  // namespace tidepool::memserver

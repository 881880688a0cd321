#include "memserver/residency/kept_index.h"

namespace tidepool::memserver {

// 1 had no index, so no server could ever go on with it.
const uint32_t kKeptLayout = 2;
const uint32_t kKeptLayoutMin = 2;

}  // namespace tidepool::memserver

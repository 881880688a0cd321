// The kept layout of the release after this one, in place of memserver/residency/kept_layout.cpp: memserver_next is linked with it.
#include "memserver/residency/kept_index.h"

namespace tidepool::memserver {

const uint32_t kKeptLayout = 8;
const uint32_t kKeptLayoutMin = 7;

}  // namespace tidepool::memserver

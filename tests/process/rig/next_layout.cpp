// The kept layout of the release after this one, in place of
// memserver/residency/kept/kept_layout.cpp: memserver_next is linked with it.
#include "memserver/residency/kept/kept_index.h"

namespace tidepool::memserver {

const uint32_t kKeptLayout = 9;
const uint32_t kKeptLayoutMin = 8;

}  // namespace tidepool::memserver

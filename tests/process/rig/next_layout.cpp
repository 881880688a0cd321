// The kept layout of the release after this one, in place of
// memserver/residency/kept/kept_layout.cpp: memserver_next is linked with it.
#include "memserver/residency/kept/kept_index.h"

namespace tidepool::memserver {

const uint32_t kKeptLayout = 10;
const uint32_t kKeptLayoutMin = 9;

}  // namespace tidepool::memserver

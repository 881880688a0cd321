#include "base/system/give_back.h"

#include <sys/mman.h>

namespace tidepool {

bool GiveBackPages(void* data, uint64_t bytes) {
  return madvise(data, bytes, MADV_REMOVE) == 0;
}

}  // namespace tidepool

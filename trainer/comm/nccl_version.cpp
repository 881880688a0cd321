#include "trainer/comm/nccl_version.h"

#if TIDEPOOL_HAS_NCCL
#include <nccl.h>
#endif

namespace tidepool::trainer {

#if TIDEPOOL_HAS_NCCL

namespace {

std::string Text(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

}  // namespace

std::string NcclVersion() {
  int loaded = 0;
  if (ncclGetVersion(&loaded) != ncclSuccess) return "unknown (ncclGetVersion failed)";
  return Text(loaded) + (loaded == NCCL_VERSION_CODE ? "" : " (built for " + Text(NCCL_VERSION_CODE) + ")");
}

#else

std::string NcclVersion() {
  return "none";
}

#endif

}  // namespace tidepool::trainer

#include "trainer/comm/nccl/nccl_version.h"

#if TIDEPOOL_HAS_NCCL
#include <nccl.h>
#endif

#include "trainer/comm/nccl/nccl_table.h"

namespace tidepool::trainer {
namespace {

#if TIDEPOOL_HAS_NCCL
constexpr int kBuiltFor = NCCL_VERSION_CODE;
#else
constexpr int kBuiltFor = 0;
#endif

std::string Text(int code) {
  std::string text = std::to_string(code / 10000);
  for (const int part : {code / 100 % 100, code % 100})
    text.append(1, '.').append(std::to_string(part));
  return text;
}

}  // namespace

std::string NcclVersion() {
  std::string text;
  int loaded = 0;

  if (const Result<const NcclTable*> nccl = LoadNccl(); !nccl.ok()) {
    text.append("none (").append(nccl.status().what()).append(")");
  } else if (nccl.value()->get_version(&loaded) != NcclTable::kSuccess) {
    text = "unknown (ncclGetVersion failed)";
  } else {
    text = Text(loaded);
    if (loaded != kBuiltFor) text.append(" (built for ").append(Text(kBuiltFor)).append(")");
  }

  return text;
}

}  // namespace tidepool::trainer

#include "trainer/cache/pipeline.h"

#include <algorithm>

namespace tidepool::trainer {

Pipeline Pipeline::Open(PipelineSetup setup) {
  const auto has_order = [](Collective* group) {
    return group == nullptr || group->world() == 1 || group->stream() != nullptr;
  };
  if (setup.streams.device == nullptr ||
      !std::all_of(setup.groups.begin(), setup.groups.end(), has_order)) {
    return Pipeline(std::make_unique<TransferPipeline>(std::move(setup)));
  }
  return Pipeline(std::make_unique<AheadPipeline>(std::move(setup)));
}

}  // namespace tidepool::trainer

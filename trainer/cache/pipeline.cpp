#include "trainer/cache/pipeline.h"

#include <algorithm>

namespace tidepool::trainer {

Result<Pipeline> Pipeline::Open(PipelineSetup setup) {
  const auto has_order = [](Collective* group) { return group == nullptr || group->world() == 1 || group->stream() != nullptr; };
  if (setup.streams.device == nullptr || !std::all_of(setup.groups.begin(), setup.groups.end(), has_order)) {
    return Pipeline(std::make_unique<TransferPipeline>(std::move(setup)));
  }
  TP_ASSIGN_OR_RETURN(auto ahead, AheadPipeline::Open(std::move(setup)));
  return Pipeline(std::move(ahead));
}

}  // namespace tidepool::trainer

// ModuleExperts: the experts of a user's module (ModuleParameter::unit) in a bound job: which of
// them a micro-batch uses, of all ranks, and where one is left out.
//
// One thread, the program's main thread. Each rank has all experts, and all ranks make the same
// calls in the same order: in forward, and in reverse in backward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/engine/engine.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/model/token_exchange.h"
#include "trainer/run/run_session.h"

namespace tidepool::trainer {

// What the experts need; all outlive them.
struct ModuleExpertParts {
  const ChunkLayout* layout = nullptr;
  RunSession* session = nullptr;  // has met
  TrainingEngine* engine = nullptr;
  OpenSteps* steps = nullptr;
  Clock* clock = nullptr;
};

class ModuleExperts {
 public:
  explicit ModuleExperts(const ModuleExpertParts& parts);

  // The rest of this micro-batch uses these units of one place of the module, in its order, where
  // counts[i], this rank's tokens for units[i], is positive on any rank. Waits for the other ranks.
  // Returns which units the module must compute, the others being left out with PassBy: as many as
  // units; all of them if no order of use is known yet. Errors: kUsageError (sizes differ, an
  // unknown unit), kCollectiveFailed, and as latched.
  Result<std::vector<bool>> Route(std::span<const uint32_t> units,
                                  const std::vector<int64_t>& counts);
  // The module comes to where it would have used the unit, in forward or in backward: its gradient
  // of this micro-batch is zeros. Errors: kUsageError, and as latched.
  Status PassBy(uint32_t unit);

 private:
  bool IsUnit(uint32_t unit) const { return unit > 0 && unit < parameters_.size(); }

  const ModuleExpertParts parts_;
  TokenMover mover_;
  std::vector<std::vector<ParameterId>> parameters_;  // trained ones, by unit
};

}  // namespace tidepool::trainer

// MoverOf: moves tokens between the ranks that share experts, and counts between all ranks, through
// collectives of their own.
//
// One thread (the trainer's main thread). While it waits for other ranks, it lets the rCache's
// transfers proceed: another rank may be waiting for one of them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/comm/collective.h"
#include "trainer/engine/engine.h"
#include "trainer/model/token_exchange.h"
#include "trainer/run/run_plan.h"
#include "trainer/run/run_session.h"

namespace tidepool::trainer {

// The mover's dependencies; all outlive the mover.
struct MoverParts {
  Collective* all = nullptr;  // all ranks of the run; on the host
  // Groups of ranks that share a block's experts, likewise, each of another size; empty: none do.
  std::vector<Collective*> sharing = {};
  Clock* clock = nullptr;
  // Lets other transfers proceed, without blocking. An error ends the wait and fails the group.
  std::function<Status()> meanwhile = {};
};

// Operations are named by their number in the run. Throws kCollectiveFailed and the error of
// `meanwhile`.
TokenMover MoverOf(MoverParts parts);

// What a run's experts need; all outlive the exchange.
struct ExpertParts {
  const RunPlan* plan = nullptr;
  RunSession* session = nullptr;  // has met
  Clock* clock = nullptr;
  const std::unique_ptr<TrainingEngine>* engine = nullptr;  // made before the model first runs
};
// The exchange of a run: through the session's groups, and with an engine that leaves out experts
// without tokens. For a model without experts NoExchange().
TokenExchange ExchangeOfExperts(const ExpertParts& parts);

}  // namespace tidepool::trainer

// MoverOf: moves tokens between the ranks that share experts, by a collective of theirs.
//
// One thread (the trainer's main thread). While it waits for the other ranks, transfers of the
// rCache go on: one of them may be what another rank waits for.
#pragma once

#include <functional>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/comm/collective.h"
#include "trainer/model/token_exchange.h"

namespace tidepool::trainer {

// What a mover works with; all of it outlives the mover.
struct MoverParts {
  Collective* group = nullptr;  // of the ranks that share experts, on the host
  Clock* clock = nullptr;
  // Moves other transfers on, without waiting. An error ends the wait, and the group.
  std::function<Status()> meanwhile = {};
};

// Its operations are named by their number in the run. Errors (thrown): kCollectiveFailed, and that
// of `meanwhile`.
TokenMover MoverOf(MoverParts parts);

}  // namespace tidepool::trainer

// MoverOf: moves tokens between the ranks that share experts, through their collective.
//
// One thread (the trainer's main thread). While it waits for other ranks, it lets the rCache's
// transfers proceed: another rank may be waiting for one of them.
#pragma once

#include <functional>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/comm/collective.h"
#include "trainer/model/token_exchange.h"

namespace tidepool::trainer {

// The mover's dependencies; all outlive the mover.
struct MoverParts {
  Collective* group = nullptr;  // ranks that share experts; on the host
  Clock* clock = nullptr;
  // Lets other transfers proceed, without blocking. An error ends the wait and fails the group.
  std::function<Status()> meanwhile = {};
};

// Operations are named by their number in the run. Throws kCollectiveFailed and the error of
// `meanwhile`.
TokenMover MoverOf(MoverParts parts);

}  // namespace tidepool::trainer

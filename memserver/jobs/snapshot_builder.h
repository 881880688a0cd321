// BuildSnapshot: the tables at the end of a turn as one immutable picture for the admin socket, and
// as the ledger for admission.
//
// The serve loop's thread. Cost is linear in the number of chunks; asked for by the control thread
// at most a few times a second.
#pragma once

#include <memory>

#include "memserver/residency/job_ledger.h"
#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

std::shared_ptr<const Snapshot> BuildSnapshot(const Parts& parts, const LoopOptions& options,
                                              const Tables& tables);
Ledger BuildLedger(const Parts& parts, const LoopOptions& options, const Tables& tables);

}  // namespace tidepool::memserver

// BuildLedger: makes the ledger that admission decides by from the tables.
//
// The serve loop's thread.
#pragma once

#include "memserver/jobs/commands/admin_settings.h"
#include "memserver/jobs/tables.h"
#include "memserver/residency/job_ledger.h"

namespace tidepool::memserver {

// Holdings of the jobs in the order of tables.jobs, then of the jobs set aside, then frozen chunks
// by user.
Ledger BuildLedger(const LoopNeighbours& neighbours, const LoopOptions& options,
                   const Tables& tables, const AdminSettings& settings);

}  // namespace tidepool::memserver

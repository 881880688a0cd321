// The staging table of a serve loop, compared with what its neighbours say: a staged piece has one
// owner, who will hear of it. A broken invariant stops the process.
//
// One thread, between turns.
#pragma once

#include "memserver/jobs/tables.h"
#include "memserver/update/staging/demotion.h"

namespace tidepool::memserver {

// Checks all of it:
//  - every slot is either free, once in the list of free ones, or staged, or abandoned and still in
//    a transfer;
//  - a slot is in a transfer exactly while the transfer queue has one for it: no drive touches the
//    memory of a free slot or of a piece at a worker, and nobody waits for an answer that does not
//    come;
//  - every staged piece is one that its owner counts, and the owner is there to hear its answers;
//  - no two slots are written to one place of a drive.
void CheckStaging(const StateTier& tier, const Tables& tables, const Demotion& demotion);

}  // namespace tidepool::memserver

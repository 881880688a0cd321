// SettleUnwritten: handles states that a drive did not take: they stay on the host, and the job
// continues; if the pool has no room for them, the job waits.
//
// The serve loop's thread, in every turn. True when there were some.
#pragma once

#include "memserver/jobs/desk_context.h"

namespace tidepool::memserver {

bool SettleUnwritten(const DeskContext& context, Job* job);

}  // namespace tidepool::memserver

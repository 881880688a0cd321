// Requests that name a frozen chunk: claims, puts of its bytes, fetches; and the handling of puts
// and gradients that are not allowed.
//
// Called by the serve loop, like transfers.h. A mistake that an honest peer may make, such as
// putting into a chunk whose claim it has lost, is answered with an error; a request that no honest
// client sends ends its session.
#pragma once

#include "memserver/residency/job_states.h"
#include "memserver/traffic/session.h"
#include "memserver/traffic/start.h"

namespace tidepool::memserver {

// Null if the request is sound, else what is wrong with it.
const char* CheckFrozen(const JobStates& states, uint64_t rcache_bytes,
                        const shm::Request& request);
Start StartClaim(JobStates* states, Session* session, JobId job, const shm::Request& request);
Start StartFrozenPut(JobStates* states, Session* session, const shm::Request& request);
void EndFrozenPut(JobStates* states, Session* session, const Copy& copy);
Start StartFrozenFetch(JobStates* states, Session* session, const shm::Request& request);
void EndFrozenFetch(JobStates* states, Session* session, const Copy& copy);
// The session ends, so its puts never complete.
void DropFrozen(JobStates* states, const shm::Request& request);

}  // namespace tidepool::memserver

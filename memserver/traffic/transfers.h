// Transfers: the two kinds of copies between the pool and an rCache: weights in and parameters out.
//
// Called by the serve loop for requests that passed their checks. A start may be repeated (a parked
// request is dispatched again); an end is called once per started copy, when it has passed on the
// stream.
#pragma once

#include "memserver/residency/job_states.h"
#include "memserver/traffic/session.h"
#include "memserver/traffic/start.h"

namespace tidepool::memserver {

// Copies elements into the master plane. Accepts the range: call once.
Start StartPut(JobStates* states, Session* session, const shm::Request& request);
// True if the copy completed its shard, so that the 16-bit plane can be made (or, in fp32 jobs, the
// shard counts as loaded).
bool EndPut(JobStates* states, Session* session, const Copy& copy);

// Copies parameters of request.version into the rCache.
Start StartFetch(JobStates* states, Session* session, const shm::Request& request);
void EndFetch(JobStates* states, Session* session, const Copy& copy);
// The session ends: its copies never complete, so their claims on the job's chunks are released,
// and its rCache holds nothing any more.
void DropSession(JobStates* states, Session* session);

}  // namespace tidepool::memserver

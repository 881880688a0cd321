// Transfers: the two copies that only move bytes between the pool and an rCache: weights in and
// parameters out.
//
// Called by the serve loop for requests that passed their checks. A start may be repeated (a parked
// request is dispatched again); an end
// is called once for each started copy, when it has passed on the stream.
#pragma once

#include "memserver/residency/job_states.h"
#include "memserver/traffic/session.h"

namespace tidepool::memserver {

// What became of a request that passed its checks.
enum class Start {
  // A copy is in flight, or the request is kept by the step tracker; it will be answered.
  kStarted,
  kWait,      // park it
  kTooLate,   // the version is overwritten: a violation of the client
  kPeerLost,  // answer with this error: the step can never end, because a rank has left
  // Of frozen chunks (frozen_requests.h).
  kDone,        // answer: that is all
  kThere,       // answer: all of its bytes are there
  kFrozen,      // answer with kChunkFrozen: nobody writes to it any more
  kUploadLost,  // answer with kUploadLost: another one puts it, or may
  kRejected,    // answer with kContentMismatch: what was put is not what its name says
  kOutOfOrder,  // a violation of the client
};

// Elements into the master plane. Accepts the range: call once.
Start StartPut(JobStates* states, Session* session, const shm::Request& request);
// True when the copy completed its shard, so that the 16-bit plane can be made (or, for fp32 jobs,
// the shard counts as loaded).
bool EndPut(JobStates* states, Session* session, const Copy& copy);

// The rCache bytes of `request` hold its chunk from now on, or, for a gradient, no chunk: for the
// residency picture.
void NoteRcacheContent(JobStates* states, Session* session, const shm::Request& request,
                       bool holds_chunk);

// Parameters of request.version into the rCache.
Start StartFetch(JobStates* states, Session* session, const shm::Request& request);
void EndFetch(JobStates* states, Session* session, const Copy& copy);
// The session goes away: its copies never end, so their claims on the job's chunks are given back,
// and its rCache holds nothing any more.
void DropSession(JobStates* states, Session* session);

}  // namespace tidepool::memserver

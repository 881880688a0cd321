// Start: what became of a request that passed its checks.
//
// A value.
#pragma once

namespace tidepool::memserver {

// What became of a request that passed its checks.
enum class Start {
  // A copy is in flight, or the request is kept by the step tracker; it will be answered.
  kStarted,
  kWait,      // park it
  kTooLate,   // the version is overwritten: a violation of the client
  kPeerLost,  // answer with this error: the step can never end, because a rank has left
  // Frozen chunks alone (frozen_requests.h):
  kDone,            // answer: that is all
  kAlreadyPresent,  // answer: all of its bytes are there
  kFrozen,          // answer with kChunkFrozen: nobody writes to it any more
  kUploadLost,      // answer with kUploadLost: another one puts it, or may
  kRejected,        // answer with kContentMismatch: what was put is not what its name says
  kOutOfOrder,      // a violation of the client
};

}  // namespace tidepool::memserver

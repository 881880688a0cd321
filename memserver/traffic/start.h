// Start: the result of starting a request that passed its checks.
//
// A value.
#pragma once

namespace tidepool::memserver {

// The result of starting a request that passed its checks.
enum class Start {
  // A copy is in flight, or the step tracker has the request; it will be answered.
  kStarted,
  kWait,      // park it
  kTooLate,   // the version is overwritten: a violation of the client
  kPeerLost,  // answer with this error: the step can never end, because a rank has left
  // Only for frozen chunks (frozen_requests.h):
  kDone,            // answer: success
  kAlreadyPresent,  // answer: all of its bytes are present
  kFrozen,          // answer with kChunkFrozen: it can no longer be written
  kUploadLost,      // answer with kUploadLost: another session puts it, or may
  kRejected,        // answer with kContentMismatch: the bytes do not match the name
  kOutOfOrder,      // a violation of the client
};

}  // namespace tidepool::memserver

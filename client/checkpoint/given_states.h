// AskForStates: asks memserver for all states of a job, as a process that is no rank of it: of a
// job that trains, or that is kept without ranks.
//
// One thread; blocks until the server has answered. The job's own user may ask, and root, and the
// user that memserver runs as.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "client/control_channel.h"
#include "shm/spec/job_spec.h"

namespace tidepool::client {

// The server's answer. The server ends the states at once when the channel is closed.
struct GivenStates {
  ControlChannel channel;
  UniqueFd memory;      // shm::kStreamBytes; the states come through it (shm/state_stream.h)
  Version version = 0;  // of the states
  shm::JobSpec spec;    // the job's description
  std::string note;     // identifies the job's run; empty: none
};

// `job`: number or name. Errors: the server's refusal (kAdminNotFound: no such job of this user;
// kSaveFailed: it has no states to give), kNoServer, kServerGone, kHandshakeBad, kAbiMismatch,
// kWaitTimeout.
Result<GivenStates> AskForStates(Clock* clock, const std::string& socket_dir,
                                 const std::string& job, int64_t timeout_ns);

// How the server has ended the states, without waiting: ok while they come, and when all of them
// have come. Errors: kSaveFailed, kServerGone, kHandshakeBad.
Status LookAtGiven(ControlChannel* channel);

}  // namespace tidepool::client

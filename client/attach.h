// AttachSession and ResumeSession: the two handshakes of a trainer: job description out, rings and rCache memory in; or, with a memserver
// that took the job over, rCache memory out and new rings in.
//
// One thread. Both block until the server has prepared the memory (seconds per GiB for the first rank of a large job) or has refused.
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "client/control_channel.h"
#include "shm/frames.h"
#include "shm/job_spec.h"
#include "shm/port.h"
#include "shm/segment.h"

namespace tidepool::client {

// Names one incarnation of a rank: the same nonce over all its connections, another one after a restart of the trainer.
struct RankName {
  Rank rank = 0;
  uint64_t nonce = 0;  // random, not 0
};

struct AttachedSession {
  std::unique_ptr<shm::ClientPort> port;
  std::unique_ptr<shm::Segment> rcache;
  Attachment attachment;
  uint64_t job_nonce = 0;  // names the job's states for a later ResumeSession
};
struct ResumedSession {
  std::unique_ptr<shm::ClientPort> port;
  SessionId session = 0;
};

// Errors: what the server refused with, kJobSpecBad (before anything is sent), kServerGone, kHandshakeBad, kAbiMismatch, kWaitTimeout.
Result<AttachedSession> AttachSession(ControlChannel* channel, const shm::JobSpec& spec, const RankName& who, int64_t timeout_ns);
// Sends `frame` (its protocols are filled in) with the descriptor of the session's rCache memory, which stays mapped and the caller's.
// Errors: what the server refused with (kStatesLost, kPeerLost, kNotReady, ...), kServerGone, kHandshakeBad, kAbiMismatch, kWaitTimeout.
Result<ResumedSession> ResumeSession(ControlChannel* channel, shm::ResumeFrame frame, int rcache_fd, int64_t timeout_ns);

}  // namespace tidepool::client

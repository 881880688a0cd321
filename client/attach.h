// AttachSession: the handshake of a trainer: job description out, rings and rCache memory in.
//
// One thread. Blocks until the server has prepared the memory (seconds per GiB for the first rank of a large job) or has refused.
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "client/control_channel.h"
#include "shm/job_spec.h"
#include "shm/port.h"
#include "shm/segment.h"

namespace tidepool::client {

struct AttachedSession {
  std::unique_ptr<shm::ClientPort> port;
  std::unique_ptr<shm::Segment> rcache;
  Attachment attachment;
};

// Errors: what the server refused with, kJobSpecBad (before anything is sent), kServerGone, kHandshakeBad, kAbiMismatch, kWaitTimeout.
Result<AttachedSession> AttachSession(ControlChannel* channel, const shm::JobSpec& spec, Rank rank, int64_t timeout_ns);

}  // namespace tidepool::client

// AttachSession and ResumeSession: the two handshakes of a trainer: job description out, rings and
// rCache memory in; or, with a memserver that took the job over, rCache memory out and new rings
// in.
//
// One thread. Both block until the server has prepared the memory (seconds per GiB for the first
// rank of a large job) or has refused.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "client/client_options.h"
#include "client/control_channel.h"
#include "shm/frames.h"
#include "shm/spec/job_spec.h"
#include "shm/port.h"
#include "shm/segment.h"

namespace tidepool::client {

// Names one incarnation of a rank: the same nonce over all its connections, another one after a
// restart of the trainer.
struct RankName {
  Rank rank = 0;
  uint64_t nonce = 0;     // random, not 0
  std::string note = {};  // what its run is known by; the server keeps that of a job's first rank
};

// How long a rank waits, and who hears of it.
struct AttachWaits {
  int64_t timeout_ns = 0;  // until the server has prepared the memory or refused
  int64_t queue_ns = 0;    // and before that in its queue; 0: a job without room is refused
  // Called when the server has put the rank into its queue: which place, and why.
  std::function<void(uint32_t place, const Status& why)> on_queued = nullptr;
  std::function<bool()> give_up = nullptr;  // asked while it waits in the queue
};

// What the server has granted.
struct AttachedSession {
  std::unique_ptr<shm::ClientPort> port;
  std::unique_ptr<shm::Segment> rcache;  // null where the rank brought it
  std::unique_ptr<shm::Segment> flags;   // only then: shm::FlagPages
  Attachment attachment;
  uint64_t job_nonce = 0;           // names the job's states for a later ResumeSession
  std::optional<uint32_t> attempt;  // at the open step; nothing where the server says nothing of it
};
// The new rings of a session that has come back.
struct ResumedSession {
  std::unique_ptr<shm::ClientPort> port;
  SessionId session = 0;
};

// Errors: what the server refused with, kJobSpecBad (before anything is sent), kServerGone,
// kHandshakeBad, kAbiMismatch, kWaitTimeout.
// And kWaitTimeout when its turn in the queue did not come in time. `brought` is null where the
// server makes the rCache.
Result<AttachedSession> AttachSession(ControlChannel* channel, const shm::JobSpec& spec,
                                      const RankName& who, const AttachWaits& waits,
                                      const BroughtMemory* brought = nullptr);
// Sends `frame` (its protocols are filled in) with the descriptors of the session's memory
// (shm::ResumeFd), which stay the caller's. Errors: what the server refused with (kStatesLost,
// kPeerLost, kNotReady, ...), kServerGone, kHandshakeBad, kAbiMismatch, kWaitTimeout.
Result<ResumedSession> ResumeSession(ControlChannel* channel, shm::ResumeFrame frame,
                                     std::span<const int> memory_fds, int64_t timeout_ns);
// What a rank says of its rCache when it greets, or comes back.
shm::RcacheKind KindOf(const BroughtMemory* brought);
// The versions that it then offers: those before brought memory know no such rank.
shm::ProtocolRange OfferedWith(const BroughtMemory* brought);

}  // namespace tidepool::client

// AttachSession and ResumeSession: a trainer's two handshakes. Attach sends the job description and
// receives rings and rCache memory; resume, with a memserver that took the job over, sends the
// rCache memory and receives new rings.
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

// Names one incarnation of a rank: the nonce is the same on all its connections and changes when
// the trainer is restarted.
struct RankName {
  Rank rank = 0;
  uint64_t nonce = 0;     // random, not 0
  std::string note = {};  // identifies its run; the server keeps that of a job's first rank
};

// How long a rank waits, and who is told.
struct AttachWaits {
  int64_t timeout_ns = 0;  // until the server has prepared the memory or refused
  int64_t queue_ns = 0;    // before that, in its queue; 0: no waiting for room
  // Called when the server has queued the rank: its position, and why.
  std::function<void(uint32_t place, const Status& why)> on_queued = nullptr;
  std::function<bool()> give_up = nullptr;  // polled while it waits in the queue
};

// The resources that the server has granted.
struct AttachedSession {
  std::unique_ptr<shm::ClientPort> port;
  std::unique_ptr<shm::Segment> rcache;  // null if the rank brought it
  std::unique_ptr<shm::Segment> flags;   // only in that case: shm::FlagPages
  Attachment attachment;
  uint64_t job_nonce = 0;           // names the job's states for a later ResumeSession
  std::optional<uint32_t> attempt;  // at the open step; nullopt if the server does not tell
};
// The new rings of a resumed session.
struct ResumedSession {
  std::unique_ptr<shm::ClientPort> port;
  SessionId session = 0;
};

// Errors: the server's refusal, kJobSpecBad (before anything is sent), kServerGone, kHandshakeBad,
// kAbiMismatch, kWaitTimeout (also if its turn in the queue did not come in time). `brought` is
// null if the server makes the rCache.
Result<AttachedSession> AttachSession(ControlChannel* channel, const shm::JobSpec& spec,
                                      const RankName& who, const AttachWaits& waits,
                                      const BroughtMemory* brought = nullptr);
// Sends `frame` (sets its protocols) with the descriptors of the session's memory (shm::ResumeFd),
// which the caller keeps. Errors: the server's refusal (kStatesLost, kPeerLost, kNotReady, ...),
// kServerGone, kHandshakeBad, kAbiMismatch, kWaitTimeout.
Result<ResumedSession> ResumeSession(ControlChannel* channel, shm::ResumeFrame frame,
                                     std::span<const int> memory_fds, int64_t timeout_ns);
// The rank's rCache kind in its hello or resume frame.
shm::RcacheKind KindOf(const BroughtMemory* brought);
// The protocol versions offered with it: servers of versions before brought memory do not know it.
shm::ProtocolRange OfferedWith(const BroughtMemory* brought);

}  // namespace tidepool::client

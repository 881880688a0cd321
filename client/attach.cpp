#include "client/attach.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "base/point.h"
#include "shm/flag_pages.h"
#include "shm/frames.h"
#include "shm/messages.h"
#include "shm/protocol.h"
#include "shm/spec/encode.h"
#include "shm/spec/validate.h"

namespace tidepool::client {

namespace {

Status SendSpec(ControlChannel* channel, const shm::JobSpec& spec, const RankName& who,
                const AttachWaits& waits, const BroughtMemory* brought) {
  const int64_t timeout_ns = waits.timeout_ns;
  const auto bytes = shm::Encode(spec);

  shm::HelloFrame hello;
  hello.protocols = OfferedWith(brought);
  // A server of an earlier version would take the dtypes for corruption.
  if (spec.HasOwnDTypes())
    hello.protocols.lowest = std::max(hello.protocols.lowest, shm::kAbiDTypes);
  if (spec.sums_gradients != 0)
    hello.protocols.lowest = std::max(hello.protocols.lowest, shm::kAbiSums);

  hello.rcache = KindOf(brought);
  hello.rank = who.rank;
  hello.world = spec.world;
  hello.pid = getpid();
  hello.flags = waits.queue_ns > 0 ? shm::kHelloMayWait : 0;
  hello.spec_bytes = bytes.size();
  hello.fingerprint = shm::Fingerprint(bytes);
  hello.nonce = who.nonce;
  hello.note = who.note;

  const std::array<int, 1> memory{brought != nullptr ? brought->descriptor : -1};
  TP_RETURN_IF_ERROR(
      channel->Send(hello, timeout_ns, std::span(memory).first(brought != nullptr ? 1 : 0)));
  TP_POINT("client.hello_sent");

  for (size_t at = 0; at < bytes.size(); at += shm::kPartBytesMax) {
    const auto end =
        bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), at + shm::kPartBytesMax));
    TP_RETURN_IF_ERROR(channel->Send(
        shm::SpecPartFrame{{bytes.begin() + static_cast<ptrdiff_t>(at), end}}, timeout_ns));
  }
  TP_POINT("client.spec_sent");
  return Status();
}

Attachment AttachmentOf(const shm::WelcomeFrame& welcome, std::byte* rcache) {
  Attachment attachment;
  attachment.session = welcome.session;
  attachment.job = welcome.job;
  attachment.rcache = rcache;
  attachment.rcache_bytes = welcome.rcache_bytes;
  attachment.weights_ready = welcome.weights_ready != 0;

  attachment.sealed_version = welcome.sealed_version;
  attachment.data_cursor = welcome.data_cursor;
  attachment.loss_scale = welcome.loss_scale;
  attachment.scaler_steps = welcome.scaler_steps;
  attachment.random_state = welcome.random_state;
  attachment.pool_bytes = welcome.pool_bytes;
  attachment.last_skipped = welcome.last_skipped != 0;
  attachment.note = welcome.note;
  return attachment;
}

Result<AttachedSession> MapSession(ReceivedFrame received, uint64_t rcache_bytes,
                                   const BroughtMemory* brought) {
  const auto& welcome = std::get<shm::WelcomeFrame>(received.frame);
  auto& fds = received.fds;
  if (welcome.rcache_bytes != rcache_bytes) {
    return Status(ErrorId::kHandshakeBad, "the server granted an rCache of " +
                                              std::to_string(welcome.rcache_bytes) +
                                              " bytes; asked were " + std::to_string(rcache_bytes));
  }

  AttachedSession session;
  TP_ASSIGN_OR_RETURN(
      session.port,
      shm::ClientPort::Map(std::move(fds[shm::kFdSubmission]), std::move(fds[shm::kFdCompletion]),
                           std::move(fds[shm::kFdDoorbell]), welcome.protocol));
  auto& memory = brought != nullptr ? session.flags : session.rcache;
  const uint64_t bytes = brought != nullptr ? shm::kFlagBytes : welcome.rcache_bytes;
  TP_ASSIGN_OR_RETURN(memory, shm::Segment::Map(std::move(fds[shm::kFdRcache]), bytes,
                                                shm::PeerAccess::kReadWrite));

  session.attachment =
      AttachmentOf(welcome, brought != nullptr ? brought->data : session.rcache->data());
  if (brought != nullptr) {
    session.attachment.flags = session.flags->data();
    session.attachment.flags_bytes = shm::kFlagBytes;
  }
  session.attachment.takes_zeros = brought == nullptr && welcome.protocol >= shm::kAbiZeros;
  session.job_nonce = welcome.job_nonce;
  if (welcome.protocol >= shm::kAbiAttempt) session.attempt = welcome.attempt & shm::kAttemptMask;
  return session;
}

Status CheckProtocol(uint32_t agreed) {
  if (shm::kOwnProtocols.Has(agreed)) return Status();
  return Status(ErrorId::kAbiMismatch,
                "memserver chose protocol version " + std::to_string(agreed) +
                    ", which was not offered: this program speaks " + Text(shm::kOwnProtocols));
}

// The next message of a server that has queued the rank because of `why`.
Result<ReceivedFrame> AwaitRoom(ControlChannel* channel, const AttachWaits& waits,
                                const Status& why) {
  constexpr int64_t kSliceNs = 200 * kNsPerMs;
  const Clock& clock = *channel->clock();
  const int64_t end = clock.NowNs() + waits.queue_ns;
  for (int64_t left = waits.queue_ns; left > 0; left = end - clock.NowNs()) {
    auto next = channel->Await(std::min(left, kSliceNs));
    if (next.ok() || next.status().id() != ErrorId::kWaitTimeout) return next;
    if (waits.give_up && waits.give_up())
      return Status(ErrorId::kSessionEnded, "stopped by a signal while the job waited for room");
  }

  return Status(ErrorId::kWaitTimeout,
                "no room within the time that the job waits for it; " + why.what())
      .Why(why.why());
}

// The first frame that is not Queued.
Result<ReceivedFrame> AwaitTurn(ControlChannel* channel, const AttachWaits& waits) {
  TP_ASSIGN_OR_RETURN(ReceivedFrame answer, channel->Await(waits.timeout_ns));
  while (const auto* queued = std::get_if<shm::QueuedFrame>(&answer.frame)) {
    if (waits.queue_ns == 0)
      return Status(ErrorId::kHandshakeBad, "the server queued a rank that does not wait");

    const Status why = queued->why;
    if (why.ok()) {  // its turn has come: preparation follows
      TP_ASSIGN_OR_RETURN(answer, channel->Await(waits.timeout_ns));
      continue;
    }
    if (waits.on_queued) waits.on_queued(queued->place, why);
    TP_ASSIGN_OR_RETURN(answer, AwaitRoom(channel, waits, why));
  }
  return answer;
}

// The last answer of both handshakes: the frame that grants the session, or the refusal.
template <typename Grant>
Result<ReceivedFrame> AwaitGrant(ControlChannel* channel, const AttachWaits& waits) {
  TP_ASSIGN_OR_RETURN(ReceivedFrame answer, AwaitTurn(channel, waits));
  if (const auto* refused = std::get_if<shm::RefusedFrame>(&answer.frame)) return refused->why;
  if (const auto* ended = std::get_if<shm::EndedFrame>(&answer.frame)) return ended->why;
  if (const auto* lost = std::get_if<shm::PeerLostFrame>(&answer.frame)) {
    return Status(ErrorId::kPeerLost, "rank " + std::to_string(lost->rank) +
                                          " of this job was lost while this one attached");
  }

  if (const auto* grant = std::get_if<Grant>(&answer.frame)) {
    TP_RETURN_IF_ERROR(CheckProtocol(grant->protocol));
    return answer;
  }
  return Status(ErrorId::kHandshakeBad,
                std::string("the server answered the greeting with ") + shm::NameOf(answer.frame));
}

// A server that refuses early stops reading; its reason is then already in the socket and says more
// than the broken connection.
Status WhyRefused(const Status& sent, const Status& answer) {
  return sent.ok() || answer.id() != ErrorId::kServerGone ? answer : sent;
}

// A server before version 5 only reports that the greeting came with a descriptor.
Status WithHint(Status refused, const BroughtMemory* brought) {
  if (brought == nullptr || refused.id() != ErrorId::kHandshakeBad || !refused.fix().empty())
    return refused;
  return std::move(refused).Fix(
      "memserver must speak protocol version " + std::to_string(shm::kAbiBrought) +
      " or later for an rCache on a GPU; install the release of this program");
}

Status CheckBrought(const BroughtMemory& brought, uint64_t rcache_bytes) {
  const bool is_whole = brought.form >= 1 && brought.form <= shm::kMemoryFormMax &&
                        brought.descriptor >= 0 && brought.data != nullptr &&
                        brought.uuid != BroughtMemory{}.uuid;
  if (is_whole && brought.bytes >= rcache_bytes) return Status();
  return Status(ErrorId::kJobSpecBad,
                "the memory brought as an rCache is " + std::to_string(brought.bytes) +
                    " bytes; the job asks for " + std::to_string(rcache_bytes));
}

}  // namespace

shm::RcacheKind KindOf(const BroughtMemory* brought) {
  if (brought == nullptr) return {};
  return {static_cast<shm::MemoryForm>(brought->form), brought->uuid};
}

shm::ProtocolRange OfferedWith(const BroughtMemory* brought) {
  shm::ProtocolRange range = shm::kOwnProtocols;
  if (brought != nullptr) range.lowest = std::max(range.lowest, shm::kAbiBrought);
  return range;
}

Result<AttachedSession> AttachSession(ControlChannel* channel, const shm::JobSpec& spec,
                                      const RankName& who, const AttachWaits& waits,
                                      const BroughtMemory* brought) {
  TP_RETURN_IF_ERROR(shm::Validate(spec));
  if (brought != nullptr) TP_RETURN_IF_ERROR(CheckBrought(*brought, spec.rcache_bytes));
  const Status sent = SendSpec(channel, spec, who, waits, brought);
  auto answer = AwaitGrant<shm::WelcomeFrame>(channel, waits);
  if (!answer.ok()) return WithHint(WhyRefused(sent, answer.status()), brought);
  auto session = MapSession(std::move(answer).value(), spec.rcache_bytes, brought);
  TP_POINT("client.attached");
  return session;
}

Result<ResumedSession> ResumeSession(ControlChannel* channel, shm::ResumeFrame frame,
                                     std::span<const int> memory_fds, int64_t timeout_ns) {
  frame.protocols = shm::kOwnProtocols;
  if (frame.rcache.is_brought())
    frame.protocols.lowest = std::max(frame.protocols.lowest, shm::kAbiBrought);

  const Status sent = channel->Send(frame, timeout_ns, memory_fds);
  TP_POINT("client.resume_sent");
  auto answer = AwaitGrant<shm::ResumedFrame>(channel, {.timeout_ns = timeout_ns});
  if (!answer.ok()) return WhyRefused(sent, answer.status());

  auto& granted = answer->fds;
  ResumedSession resumed;
  const auto& grant = std::get<shm::ResumedFrame>(answer->frame);
  resumed.session = grant.session;
  TP_ASSIGN_OR_RETURN(resumed.port, shm::ClientPort::Map(
                                        std::move(granted[shm::kResumedSubmission]),
                                        std::move(granted[shm::kResumedCompletion]),
                                        std::move(granted[shm::kResumedDoorbell]), grant.protocol));
  TP_POINT("client.resumed");
  return resumed;
}

}  // namespace tidepool::client

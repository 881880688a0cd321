#include "client/attach.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/point.h"
#include "shm/frames.h"
#include "shm/messages.h"

namespace tidepool::client {

namespace {

Status SendSpec(ControlChannel* channel, const shm::JobSpec& spec, Rank rank, int64_t timeout_ns) {
  const auto bytes = shm::Encode(spec);
  shm::HelloFrame hello;
  hello.abi = shm::kAbiVersion;
  hello.rank = rank;
  hello.world = spec.world;
  hello.pid = getpid();
  hello.spec_bytes = bytes.size();
  hello.fingerprint = shm::Fingerprint(bytes);
  TP_RETURN_IF_ERROR(channel->Send(hello, timeout_ns));
  TP_POINT("client.hello_sent");
  for (size_t at = 0; at < bytes.size(); at += shm::kPartBytesMax) {
    const auto end = bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), at + shm::kPartBytesMax));
    TP_RETURN_IF_ERROR(channel->Send(shm::SpecPartFrame{{bytes.begin() + static_cast<ptrdiff_t>(at), end}}, timeout_ns));
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
  return attachment;
}

Result<AttachedSession> MapSession(ReceivedFrame received, uint64_t rcache_bytes) {
  const auto& welcome = std::get<shm::WelcomeFrame>(received.frame);
  auto& fds = received.fds;
  if (welcome.rcache_bytes != rcache_bytes) {
    return Status(ErrorId::kHandshakeBad, "the server granted an rCache of " + std::to_string(welcome.rcache_bytes) +
                                              " bytes; asked were " + std::to_string(rcache_bytes));
  }
  AttachedSession session;
  TP_ASSIGN_OR_RETURN(session.port, shm::ClientPort::Map(std::move(fds[shm::kFdSubmission]), std::move(fds[shm::kFdCompletion]),
                                                         std::move(fds[shm::kFdDoorbell])));
  TP_ASSIGN_OR_RETURN(session.rcache, shm::Segment::Map(std::move(fds[shm::kFdRcache]), welcome.rcache_bytes, shm::PeerAccess::kReadWrite));
  session.attachment = AttachmentOf(welcome, session.rcache->data());
  return session;
}

}  // namespace

Result<AttachedSession> AttachSession(ControlChannel* channel, const shm::JobSpec& spec, Rank rank, int64_t timeout_ns) {
  TP_RETURN_IF_ERROR(shm::Validate(spec));
  const Status sent = SendSpec(channel, spec, rank, timeout_ns);
  // A server that refuses early stops reading; its reason is then already on its way and says more than the broken connection.
  auto answer = channel->Await(timeout_ns);
  if (!answer.ok()) return sent.ok() ? answer.status() : sent;
  if (const auto* refused = std::get_if<shm::RefusedFrame>(&answer->frame)) return refused->why;
  if (const auto* ended = std::get_if<shm::EndedFrame>(&answer->frame)) return ended->why;
  if (!std::holds_alternative<shm::WelcomeFrame>(answer->frame)) {
    return Status(ErrorId::kHandshakeBad, std::string("the server answered the greeting with ") + shm::NameOf(answer->frame));
  }
  auto session = MapSession(std::move(answer).value(), spec.rcache_bytes);
  TP_POINT("client.attached");
  return session;
}

}  // namespace tidepool::client

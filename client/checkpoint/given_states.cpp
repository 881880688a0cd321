#include "client/checkpoint/given_states.h"

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "shm/frames.h"
#include "shm/messages.h"
#include "shm/protocol.h"
#include "shm/segment.h"
#include "shm/spec/decode.h"

namespace tidepool::client {
namespace {

Status Answered(const shm::Frame& frame) {
  return Status(ErrorId::kHandshakeBad,
                std::string("the server answered a wish for states with ") + shm::NameOf(frame));
}

// A server of an earlier release does not know the frame.
Status AsRelease(const Status& why) {
  if (why.id() != ErrorId::kHandshakeBad) return why;
  return Status(ErrorId::kAbiMismatch, "memserver gives no states to a process that is no rank")
      .Why(why.what())
      .Fix("start the memserver of this release; it goes on with the jobs");
}

}  // namespace

Result<GivenStates> AskForStates(Clock* clock, const std::string& socket_dir,
                                 const std::string& job, int64_t timeout_ns) {
  TP_ASSIGN_OR_RETURN(ControlChannel channel, ControlChannel::Open(clock, socket_dir, timeout_ns));
  shm::AskStatesFrame ask{.protocols = shm::kOwnProtocols, .job = job};
  ask.protocols.lowest = shm::kAbiAsked;
  TP_RETURN_IF_ERROR(channel.Send(ask, timeout_ns));
  TP_ASSIGN_OR_RETURN(ReceivedFrame answer, channel.Await(timeout_ns));
  if (const auto* refused = std::get_if<shm::RefusedFrame>(&answer.frame))
    return AsRelease(refused->why);
  const auto* const given = std::get_if<shm::StatesGivenFrame>(&answer.frame);
  if (given == nullptr) return Answered(answer.frame);

  TP_ASSIGN_OR_RETURN(const std::unique_ptr<shm::Segment> text,
                      shm::Segment::Map(std::move(answer.fds[shm::kGivenSpec]), given->spec_bytes,
                                        shm::PeerAccess::kReadOnly));
  TP_ASSIGN_OR_RETURN(shm::JobSpec spec,
                      shm::Decode(std::span<const std::byte>(text->data(), given->spec_bytes)));
  return GivenStates{.channel = std::move(channel),
                     .memory = std::move(answer.fds[shm::kGivenStates]),
                     .version = given->version,
                     .spec = std::move(spec),
                     .note = given->note};
}

Status LookAtGiven(ControlChannel* channel) {
  TP_ASSIGN_OR_RETURN(const std::optional<ReceivedFrame> received, channel->Poll());
  if (!received) return {};
  if (const auto* done = std::get_if<shm::SaveDoneFrame>(&received->frame)) return done->result;
  if (const auto* refused = std::get_if<shm::RefusedFrame>(&received->frame)) return refused->why;
  return Answered(received->frame);
}

}  // namespace tidepool::client

// How MemClient saves states: weights that the server writes into a directory, and all states or
// the steps that follow, through memory that the server makes.
#include <array>
#include <functional>
#include <string>
#include <utility>

#include "base/point.h"
#include "base/units.h"
#include "client/mem_client.h"
#include "shm/frames.h"
#include "shm/messages.h"

namespace tidepool::client {
namespace {

// For a stream that has not ended. The server soon ends one whose reader has died or stalled, and
// tells it a moment after a reader that has everything.
Status StillComing(const char* what) {
  return Status(ErrorId::kSaveFailed,
                std::string("the ") + what + " that were asked for before still come");
}

}  // namespace

Status MemClient::PendingSave::SendTo(ControlChannel* channel) const {
  const std::array<int, 1> fds{dir_fd};
  return channel->Send(shm::SaveFrame{version, name}, kControlTimeoutNs, fds);
}

Status MemClient::WaitUntil(const std::function<bool()>& reached, int64_t limit_ns,
                            const Status& late) {
  const int64_t end = clock_->NowNs() + limit_ns - parked_ns_;
  while (!reached()) {
    TP_RETURN_IF_ERROR(CheckSession());
    if (reached()) break;
    if (clock_->NowNs() > end + parked_ns_) return late;
    session_.port->WaitForCompletion(clock_, kNsPerMs, 0);
    TakeCompletions();
  }
  return {};
}

Status MemClient::SaveWeights(int dir_fd, const std::string& name, Version version) {
  TP_RETURN_IF_ERROR(Usable());
  TP_RETURN_IF_ERROR(CheckSession());
  if (!shm::IsPlainFileName(name))
    return Status(ErrorId::kSaveFailed, "'" + name + "' is not a plain file name");
  TP_RETURN_IF_ERROR(WaitUntil([this] { return StreamEnd().has_value(); }, options_.save_timeout_ns,
                               StillComing("states")));

  save_ = PendingSave{dir_fd, name, version, {}};
  Status result = AfterSend(save_->SendTo(&channel_));
  if (result.ok()) TP_POINT("client.save_sent");
  if (result.ok())
    result = WaitUntil(
        [this] { return save_->result.has_value(); }, options_.save_timeout_ns,
        Status(ErrorId::kWaitTimeout, "memserver has not finished saving '" + name + "'"));
  if (result.ok()) result = *save_->result;
  save_.reset();
  return result;
}

Result<UniqueFd> MemClient::StreamStates(Version version) {
  TP_RETURN_IF_ERROR(Usable());
  TP_RETURN_IF_ERROR(CheckSession());
  if (session_.port->protocol() < shm::kAbiStates)
    return Status(ErrorId::kAbiMismatch, "memserver is of a release that gives no moments away")
        .Fix("start the memserver of this release; it goes on with the job");
  TP_RETURN_IF_ERROR(WaitUntil([this] { return StreamEnd().has_value(); }, options_.save_timeout_ns,
                               StillComing("states")));

  stream_.emplace();
  TP_RETURN_IF_ERROR(AfterSend(channel_.Send(shm::StreamStatesFrame{version}, kControlTimeoutNs)));
  TP_POINT("client.stream_sent");
  return AwaitMemory(&stream_);
}

Result<UniqueFd> MemClient::StreamSteps(Version version) {
  TP_RETURN_IF_ERROR(Usable());
  TP_RETURN_IF_ERROR(CheckSession());
  if (session_.port->protocol() < shm::kAbiSteps)
    return Status(ErrorId::kAbiMismatch, "memserver is of a release that gives no steps away")
        .Fix("start the memserver of this release; it goes on with the job");
  // A log of steps tries again later; training does not wait for it.
  if (!StepsEnd()) return StillComing("steps");

  steps_.emplace();
  TP_RETURN_IF_ERROR(AfterSend(channel_.Send(shm::StreamStepsFrame{{version}}, kControlTimeoutNs)));
  TP_POINT("client.steps_sent");
  return AwaitMemory(&steps_);
}

Result<UniqueFd> MemClient::AwaitMemory(std::optional<PendingStream>* stream) {
  PendingStream& pending = **stream;
  TP_RETURN_IF_ERROR(WaitUntil(
      [&pending] { return pending.memory.valid() || pending.ended.has_value(); }, kControlTimeoutNs,
      Status(ErrorId::kWaitTimeout, "memserver did not answer with memory to read from")));

  // The session continues at the next server; a stream of the previous one does not.
  if (!pending.memory.valid() && pending.ended->id() == ErrorId::kServerGone)
    return Status(ErrorId::kSaveFailed, pending.ended->what());
  if (!pending.memory.valid()) return *pending.ended;
  return std::move(pending.memory);
}

std::optional<Status> MemClient::EndOf(std::optional<PendingStream>* stream) {
  if (!*stream) return Status();
  PendingStream& pending = **stream;
  if (!pending.ended) (void)CheckSession();
  if (!pending.ended && !ended_.ok()) pending.ended = ended_;
  return pending.ended;
}

}  // namespace tidepool::client

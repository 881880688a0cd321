// How MemClient saves states: weights that the server writes into a directory, and all states or
// the steps that follow, through memory that the server makes.
#include <array>
#include <utility>

#include "base/point.h"
#include "base/units.h"
#include "client/mem_client.h"
#include "shm/frames.h"
#include "shm/messages.h"

namespace tidepool::client {

Status MemClient::SendSave() {
  const std::array<int, 1> fds{save_->dir_fd};
  return channel_.Send(shm::SaveFrame{save_->version, save_->name}, kControlTimeoutNs, fds);
}

Status MemClient::SaveWeights(int dir_fd, const std::string& name, Version version) {
  TP_RETURN_IF_ERROR(Usable());
  TP_RETURN_IF_ERROR(CheckSession());
  if (!shm::IsPlainFileName(name))
    return Status(ErrorId::kSaveFailed, "'" + name + "' is not a plain file name");
  TP_RETURN_IF_ERROR(AwaitStreamEnd());
  save_ = PendingSave{dir_fd, name, version, {}};
  const Status result = RunSave();
  save_.reset();
  return result;
}

Status MemClient::RunSave() {
  TP_RETURN_IF_ERROR(AfterSend(SendSave()));
  TP_POINT("client.save_sent");
  const int64_t end = clock_->NowNs() + options_.save_timeout_ns - parked_ns_;

  while (!save_->result) {
    TP_RETURN_IF_ERROR(CheckSession());
    if (save_->result) break;
    if (clock_->NowNs() > end + parked_ns_)
      return Status(ErrorId::kWaitTimeout,
                    "memserver has not finished saving '" + save_->name + "'");
    session_.port->WaitForCompletion(clock_, kNsPerMs, 0);
    TakeCompletions();
  }
  return *save_->result;
}

Result<UniqueFd> MemClient::StreamStates(Version version) {
  TP_RETURN_IF_ERROR(Usable());
  TP_RETURN_IF_ERROR(CheckSession());
  if (session_.port->protocol() < shm::kAbiStates)
    return Status(ErrorId::kAbiMismatch, "memserver is of a release that gives no moments away")
        .Fix("start the memserver of this release; it goes on with the job");
  TP_RETURN_IF_ERROR(AwaitStreamEnd());

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
  if (!StepsEnd())
    return Status(ErrorId::kSaveFailed, "the steps that were asked for before still come");

  steps_.emplace();
  TP_RETURN_IF_ERROR(AfterSend(channel_.Send(shm::StreamStepsFrame{{version}}, kControlTimeoutNs)));
  TP_POINT("client.steps_sent");
  return AwaitMemory(&steps_);
}

Result<UniqueFd> MemClient::AwaitMemory(std::optional<PendingStream>* stream) {
  PendingStream& pending = **stream;
  const int64_t end = clock_->NowNs() + kControlTimeoutNs;
  while (!pending.memory.valid() && !pending.ended) {
    TP_RETURN_IF_ERROR(CheckSession());
    if (pending.memory.valid() || pending.ended) break;
    if (clock_->NowNs() > end)
      return Status(ErrorId::kWaitTimeout, "memserver did not answer with memory to read from");
    session_.port->WaitForCompletion(clock_, kNsPerMs, 0);
    TakeCompletions();
  }

  // The session continues at the next server; a stream of the previous one does not.
  if (!pending.memory.valid() && pending.ended->id() == ErrorId::kServerGone)
    return Status(ErrorId::kSaveFailed, pending.ended->what());
  if (!pending.memory.valid()) return *pending.ended;
  return std::move(pending.memory);
}

// The server soon ends a stream whose reader has died or stalled, and tells it a moment after a
// reader that has everything.
Status MemClient::AwaitStreamEnd() {
  const int64_t end = clock_->NowNs() + options_.save_timeout_ns;
  while (!StreamEnd()) {
    if (clock_->NowNs() > end)
      return Status(ErrorId::kSaveFailed, "the states that were asked for before still come");
    session_.port->WaitForCompletion(clock_, kNsPerMs, 0);
    TakeCompletions();
  }
  return {};
}

std::optional<Status> MemClient::EndOf(std::optional<PendingStream>* stream) {
  if (!*stream) return Status();
  PendingStream& pending = **stream;
  if (!pending.ended) (void)CheckSession();
  if (!pending.ended && !ended_.ok()) pending.ended = ended_;
  return pending.ended;
}

}  // namespace tidepool::client

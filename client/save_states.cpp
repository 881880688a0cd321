// How MemClient saves states: weights that the server writes into a directory, and all states
// through memory that the server makes.
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
  const int64_t end = clock_->NowNs() + kControlTimeoutNs;
  while (!stream_->memory.valid() && !stream_->ended) {
    TP_RETURN_IF_ERROR(CheckSession());
    if (stream_->memory.valid() || stream_->ended) break;
    if (clock_->NowNs() > end) return Status(ErrorId::kWaitTimeout, "no states came");
    session_.port->WaitForCompletion(clock_, kNsPerMs, 0);
    TakeCompletions();
  }

  // The session continues at the next server; a stream of the previous one does not.
  if (!stream_->memory.valid() && stream_->ended->id() == ErrorId::kServerGone)
    return Status(ErrorId::kSaveFailed, stream_->ended->what());
  if (!stream_->memory.valid()) return *stream_->ended;
  return std::move(stream_->memory);
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

std::optional<Status> MemClient::StreamEnd() {
  if (!stream_) return Status();
  if (!stream_->ended) (void)CheckSession();
  if (!stream_->ended && !ended_.ok()) stream_->ended = ended_;
  return stream_->ended;
}

}  // namespace tidepool::client

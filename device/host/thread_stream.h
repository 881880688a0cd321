// ThreadStream: a host stream with a thread of its own that executes operations while the owner
// does other things.
//
// The public part belongs to the owner's thread; Main and what it calls, to the stream's thread.
// They share the operation queue, the runner's passed counter, bell_ and event_. The protocol:
//
//   owner                                        thread
//   Push(op)                                     Run ...
//   bell_ += 1, notify                           idle -> spin -> wait(bell_ == seen)
//   ...                                          ...
//   ClearEvent: read(event_), told_ = false      passed_ = marker
//   Passed: load passed_                         told_: false -> true ? write(event_)
//
// Both sides change told_ by atomic exchange: either the thread sees that the event must be written
// again, or the owner's exchange reads the thread's and with it the new passed_.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "device/host/copy_team.h"
#include "device/host/host_stream.h"
#include "device/host/operation_queue.h"
#include "device/host/operation_runner.h"

namespace tidepool::device {

class ThreadStream final : public HostStream {
 public:
  // `team` helps with large copies; null: the stream's thread copies alone. `clock`, which outlives
  // the stream, times spinning and sleeping. Errors: kInternal (no thread or descriptor left).
  static Result<std::unique_ptr<Stream>> Open(Clock* clock, int64_t spin_ns,
                                              std::shared_ptr<CopyTeam> team);
  // Drops operations that have not been done; waits for the piece in progress.
  ~ThreadStream() override;

  void Copy(void* dst, const void* src, uint64_t bytes) override;
  void Zero(void* dst, uint64_t bytes) override;
  void Launch(const Kernel& kernel, const void* arguments, uint64_t items) override;
  void WaitFlag(const Flag* flag, uint64_t value) override;
  void WriteFlag(Flag* flag, uint64_t value) override;
  Marker Record() override;
  void WaitMarker(Stream* other, Marker marker) override;
  bool Progress(uint64_t) override { return false; }
  void Synchronize(Marker marker) override;
  int event_fd() const override { return event_.get(); }
  void ClearEvent() override;

 private:
  ThreadStream(Clock* clock, UniqueFd event, int64_t spin_ns, std::shared_ptr<CopyTeam> team)
      : clock_(clock),
        team_(std::move(team)),
        runner_(&queue_, passed(), team_.get()),
        spin_ns_(spin_ns),
        event_(std::move(event)) {}
  void Push(Operation operation);
  void Main();
  // Spins once, or, after spin_ns_ without work, sleeps until there may be something to do. `seen`:
  // bell_ before the last check.
  void Rest(OperationRunner::State state, uint32_t seen);
  // Makes event_ readable.
  void Tell();

  Clock* const clock_;
  OperationQueue queue_;
  const std::shared_ptr<CopyTeam> team_;
  OperationRunner runner_;
  const int64_t spin_ns_;
  const UniqueFd event_;
  std::atomic<uint32_t> bell_{0};  // counts reasons to check again; the thread sleeps on it
  std::atomic<bool> stop_{false};
  std::atomic<bool> told_{false};  // event_ is readable and the owner has not cleared it
  Marker last_marker_ = 0;         // owner only
  // Stream's thread only: when it last had nothing to do, -1 while it works.
  int64_t idle_since_ns_ = -1;
  std::thread thread_;
};

}  // namespace tidepool::device

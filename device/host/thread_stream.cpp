#include "device/host/thread_stream.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::device {
namespace {

// One piece between two checks of stop_: below 1 ms at 10 GB/s.
constexpr uint64_t kPieceBytes = 8 * kMiB;
// A flag is written by another process, a marker passed by another stream's thread; neither wakes
// this thread: after the spin they are polled at this interval.
constexpr int64_t kFlagPollNs = 20'000;

}  // namespace

Result<std::unique_ptr<Stream>> ThreadStream::Open(Clock* clock, int64_t spin_ns,
                                                   std::shared_ptr<CopyTeam> team) {
  UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid())
    return Status(ErrorId::kInternal, "no eventfd for a copy stream").Why(std::strerror(errno));
  // make_unique cannot call the private constructor.
  std::unique_ptr<ThreadStream> stream(
      new ThreadStream(clock, std::move(event), spin_ns, std::move(team)));
  try {
    stream->thread_ = std::thread(&ThreadStream::Main, stream.get());
  } catch (const std::system_error& error) {
    return Status(ErrorId::kInternal, "no thread for a copy stream").Why(error.what());
  }
  return std::unique_ptr<Stream>(std::move(stream));
}

ThreadStream::~ThreadStream() {
  stop_.store(true, std::memory_order_release);
  bell_.fetch_add(1, std::memory_order_release);
  bell_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ThreadStream::Push(Operation operation) {
  queue_.Push(std::move(operation));
  bell_.fetch_add(1, std::memory_order_release);
  bell_.notify_one();  // a system call only if the thread sleeps
}

void ThreadStream::Copy(void* dst, const void* src, uint64_t bytes) {
  Push({.kind = Operation::Kind::kCopy,
        .dst = static_cast<std::byte*>(dst),
        .src = static_cast<const std::byte*>(src),
        .value = bytes});
}

void ThreadStream::WaitFlag(const Flag* flag, uint64_t value) {
  Push({.kind = Operation::Kind::kWaitFlag, .value = value, .wait = flag});
}

void ThreadStream::Zero(void* dst, uint64_t bytes) {
  Push({.kind = Operation::Kind::kZero, .dst = static_cast<std::byte*>(dst), .value = bytes});
}

void ThreadStream::Launch(const Kernel& kernel, const void* arguments, uint64_t items) {
  Push({.kind = Operation::Kind::kKernel,
        .value = items,
        .call = OperationQueue::CallOf(kernel, arguments)});
}

void ThreadStream::WriteFlag(Flag* flag, uint64_t value) {
  Push({.kind = Operation::Kind::kWriteFlag, .value = value, .write = flag});
}

Stream::Marker ThreadStream::Record() {
  Push({.kind = Operation::Kind::kMarker, .value = ++last_marker_});
  return last_marker_;
}

void ThreadStream::WaitMarker(Stream* other, Marker marker) {
  Push({.kind = Operation::Kind::kWaitMarker, .value = marker, .other = PassedOf(other)});
}

void ThreadStream::Synchronize(Marker marker) {
  TP_CHECK(marker <= last_marker_, "Synchronize with a marker that was never recorded");
  while (!Passed(marker)) {
    pollfd event{event_.get(), POLLIN, 0};
    (void)poll(&event, 1, -1);  // an interrupted poll is repeated
    ClearEvent();
  }
  // The event of other markers that passed meanwhile was consumed above: signal it again for an
  // owner that sleeps on it.
  Tell();
}

void ThreadStream::ClearEvent() {
  uint64_t count = 0;
  [[maybe_unused]] const auto n = read(event_.get(), &count, sizeof count);
  told_.exchange(false, std::memory_order_acq_rel);
}

void ThreadStream::Tell() {
  if (told_.exchange(true, std::memory_order_acq_rel)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(event_.get(), &one, sizeof one);
}

void ThreadStream::Main() {
  for (;;) {
    // Reads the bell first: a stop that comes after this check has changed the bell, so Rest does
    // not sleep on it.
    const uint32_t seen = bell_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    const OperationRunner::Progress progress = runner_.Run(kPieceBytes);
    if (progress.marker_passed) Tell();
    if (progress.worked) idle_since_ns_ = -1;
    if (progress.state != OperationRunner::State::kWorked) Rest(progress.state, seen);
  }
}

void ThreadStream::Rest(OperationRunner::State state, uint32_t seen) {
  const int64_t now = clock_->NowNs();
  if (idle_since_ns_ < 0) idle_since_ns_ = now;

  if (now - idle_since_ns_ < spin_ns_) {
    __builtin_ia32_pause();
  } else if (state == OperationRunner::State::kBlocked) {
    clock_->SleepNs(kFlagPollNs);
  } else {
    bell_.wait(seen, std::memory_order_acquire);
    idle_since_ns_ = -1;
  }
}

}  // namespace tidepool::device

#include "device/host/inline_stream.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/units.h"

namespace tidepool::device {

TP_HOT void InlineStream::Copy(void* dst, const void* src, uint64_t bytes) {
  queue_.Push({.kind = Operation::Kind::kCopy,
               .dst = static_cast<std::byte*>(dst),
               .src = static_cast<const std::byte*>(src),
               .value = bytes});
}

void InlineStream::Zero(void* dst, uint64_t bytes) {
  queue_.Push(
      {.kind = Operation::Kind::kZero, .dst = static_cast<std::byte*>(dst), .value = bytes});
}

void InlineStream::WaitFlag(const Flag* flag, uint64_t value) {
  queue_.Push({.kind = Operation::Kind::kWaitFlag, .value = value, .wait = flag});
}

void InlineStream::Launch(const Kernel& kernel, const void* arguments, uint64_t items) {
  queue_.Push({.kind = Operation::Kind::kKernel,
               .value = items,
               .call = OperationQueue::CallOf(kernel, arguments)});
}

void InlineStream::WriteFlag(Flag* flag, uint64_t value) {
  queue_.Push({.kind = Operation::Kind::kWriteFlag, .value = value, .write = flag});
}

TP_HOT Stream::Marker InlineStream::Record() {
  queue_.Push({.kind = Operation::Kind::kMarker, .value = ++last_marker_});
  return last_marker_;
}

void InlineStream::WaitMarker(Stream* other, Marker marker) {
  queue_.Push({.kind = Operation::Kind::kWaitMarker, .value = marker, .other = PassedOf(other)});
}

void InlineStream::Synchronize(Marker marker) {
  TP_CHECK(marker <= last_marker_, "Synchronize with a marker that was never recorded");
  constexpr int64_t kFlagPollNs = 20'000;
  while (!Passed(marker)) {
    if (!runner_.Run(64 * kMiB).worked) clock_->SleepNs(kFlagPollNs);
  }
}

}  // namespace tidepool::device

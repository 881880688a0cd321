#include "memserver/admin/snapshot_source.h"

#include <chrono>
#include <utility>

namespace tidepool::memserver {

SnapshotLook SnapshotSource::Get() {
  std::unique_lock lock(mutex_);
  const int64_t begin = clock_->NowNs();

  // A question that was open before this call may be answered with an old state of the loop: then
  // one more is asked.
  while (AskIfOld(begin), asked_ns_ >= 0 && !waited_in_vain_) {
    const uint64_t answers = answers_;
    const std::chrono::nanoseconds left(begin + kWaitMs * kNsPerMs - clock_->NowNs());
    waited_in_vain_ = !answered_.wait_for(lock, left, [&] { return answers_ != answers; });
  }

  return LookLocked(clock_->NowNs());
}

SnapshotLook SnapshotSource::Look() {
  const std::lock_guard lock(mutex_);
  const int64_t now = clock_->NowNs();
  AskIfOld(now);
  return LookLocked(now);
}

void SnapshotSource::Outdate() {
  const std::lock_guard lock(mutex_);
  outdated_ = true;
}

void SnapshotSource::Publish(std::shared_ptr<const Snapshot> snapshot) {
  {
    const std::lock_guard lock(mutex_);
    snapshot_ = std::move(snapshot);
    snapshot_ns_ = asked_ns_ < 0 ? clock_->NowNs() : asked_ns_;
    asked_ns_ = -1;
    waited_in_vain_ = false;
    ++answers_;
  }
  answered_.notify_all();
}

void SnapshotSource::AskIfOld(int64_t at) {
  const bool fresh =
      snapshot_ != nullptr && !outdated_ && at - snapshot_ns_ <= kAgeMaxMs * kNsPerMs;
  if (asked_ns_ >= 0 || fresh) return;
  asked_ns_ = clock_->NowNs();
  outdated_ = false;
  to_loop_->Push(SnapshotWanted{});
}

SnapshotLook SnapshotSource::LookLocked(int64_t now) const {
  const auto seconds = [&](int64_t since) {
    return static_cast<double>(now - since) / kNsPerSecond;
  };
  return {.snapshot = snapshot_,
          .age_seconds = snapshot_ == nullptr ? 0 : seconds(snapshot_ns_),
          .silent_seconds = asked_ns_ < 0 ? 0 : seconds(asked_ns_)};
}

}  // namespace tidepool::memserver

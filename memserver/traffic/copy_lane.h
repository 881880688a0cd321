// CopyLane: the copies of one session between the host pool and the session's rCache.
//
// One thread (the serve loop). On the host a lane has a stream of its own, and its copies end in
// order; destroying it drops copies that have not begun. If the rank brought GPU memory, copies go
// on that GPU's streams, two in each direction in turn; a copy that touches the chunk or the block
// of one in flight goes behind it. They are taken back in order, and none is ever dropped: the lane
// may be destroyed only when AllPassed, or when the GPU has failed. Both memories must live until a
// copy was taken back by TakeDone or the lane is destroyed. At most kOutstandingMax copies are in
// it (their requests are limited to that number). On a GPU the lane also tracks which requests are
// *awaited*: a request that came n uses ahead of its need becomes awaited when n times its bytes
// have begun behind its root complex since it came, because the uses before it have then had their
// chunks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "device/device.h"
#include "memserver/residency/spans/span_log.h"
#include "memserver/traffic/fixed_ring.h"
#include "memserver/traffic/gpu_streams.h"
#include "shm/flag_pages.h"
#include "shm/messages.h"

namespace tidepool::memserver {

// A chunk that is needed after this many uses, or more, is needed far ahead.
inline constexpr uint64_t kUsesAheadMax = 64;

// A copy in flight: its request, and what must be known when it has ended.
struct Copy {
  shm::Request request;
  uint64_t bytes = 0;
  // Attempt at the open step (gradients): a copy of an earlier one has no effect any more.
  uint32_t attempt = 0;
  // To the staging buffer instead of the slot (gradients) or the master (weights).
  bool to_staging = false;
  int64_t begin_ns = 0;  // by the clock of the span log; 0: not recorded
};

class CopyLane {
 public:
  CopyLane(std::unique_ptr<device::Stream> stream, uint32_t copies_max);
  // A lane on the shared streams of a GPU, which outlive it. For a fetch with flags
  // (shm/flag_pages.h) the stream writes its `done` word behind the copy, or TakeDone does
  // (Gpu::done); the request's number is flags_base + its counter.
  CopyLane(GpuStreams* gpu, uint32_t copies_max, shm::FlagPages flags, uint64_t flags_base);
  ~CopyLane();
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  // Puts the copy on a stream. Requires HasRoom of its request.
  void Start(const Copy& copy, void* to, const void* from);
  // The same for bytes that become zeros; on the host only.
  void StartZero(const Copy& copy, void* to);
  // Takes the oldest copy of either direction once it has ended; false if it has not.
  bool TakeDone(Copy* copy);
  // Copies at most about `bytes_max` if the loop's thread does the copying; true if it did
  // something.
  bool Progress(uint64_t bytes_max);
  // True if a copy for this request may begin now.
  bool HasRoom(const shm::Request& request) const {
    return gpu_ == nullptr || gpu_->HasRoom(WayOf(request), IsAwaited(request));
  }
  // On a GPU: notes when a request of this many bytes will be awaited.
  void NoteArrival(const shm::Request& request, uint64_t bytes);
  // When the request is awaited, by the clock of its root complex and direction.
  uint64_t AwaitedAt(const shm::Request& request) const {
    return awaited_at_[request.counter % awaited_at_.size()];
  }
  bool IsAwaited(const shm::Request& request) const {
    return AwaitedAt(request) <= gpu_->root().way(WayOf(request)).begun;
  }
  static LaneWay WayOf(const shm::Request& request) {
    return request.op == static_cast<uint32_t>(shm::Op::kFetch) ? LaneWay::kToRcache
                                                                : LaneWay::kToPool;
  }
  // True if no copy is in progress, taken back or not.
  bool AllPassed();
  // Adds the copies that begin from now on to `log` when they have ended, as copies for `rank`;
  // null: to none.
  void Record(const std::shared_ptr<SpanLog>& log, Rank rank) {
    spans_ = log;
    rank_ = rank;
  }

  // Copies in flight, in both directions.
  uint32_t size() const { return ways_[0].size() + ways_[1].size(); }
  uint64_t bytes_in_flight() const { return bytes_in_flight_; }
  uint64_t bytes_started() const { return bytes_started_; }  // ever
  // A copy in flight; those of one direction come oldest first.
  const Copy& at(uint32_t i) const {
    return i < ways_[0].size() ? ways_[0].at(i).copy : ways_[1].at(i - ways_[0].size()).copy;
  }
  GpuStreams* gpu() const { return gpu_; }
  // Event descriptor of its own stream; -1 if the owner must poll.
  int event_fd() const { return own_ != nullptr ? own_->event_fd() : -1; }
  void ClearEvent() {
    if (own_ != nullptr) own_->ClearEvent();
  }

 private:
  struct Slot {
    Copy copy;
    device::Stream::Marker marker = 0;
    bool awaited = false;  // on a GPU
    uint32_t stream = 0;   // index in its direction
  };
  uint32_t StreamFor(const shm::Request& request) const;
  void StartShared(const Copy& copy, void* to, const void* from);
  bool TakeShared(Copy* copy);
  void WriteDone(const shm::Request& request) const;
  int64_t BeginNs() const { return spans_ == nullptr ? 0 : spans_->NowNs(); }
  void Ended(const Copy& copy) const {
    if (spans_ != nullptr && copy.begin_ns != 0) AddSpan(copy);
  }
  void AddSpan(const Copy& copy) const;

  const std::unique_ptr<device::Stream> own_;
  GpuStreams* const gpu_ = nullptr;
  const shm::FlagPages flags_;
  const uint64_t flags_base_ = 0;
  std::array<FixedRing<Slot>, 2> ways_;  // with its own stream: only the first is used
  std::vector<uint64_t> awaited_at_;     // on a GPU: by counter % copies_max
  uint64_t bytes_in_flight_ = 0, bytes_started_ = 0;
  std::shared_ptr<SpanLog> spans_;  // null: copies are not recorded
  Rank rank_ = 0;
};

}  // namespace tidepool::memserver

#include "memserver/traffic/copy_lane.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/hot.h"
#include "base/planted.h"
#include "base/point.h"

namespace tidepool::memserver {

CopyLane::CopyLane(std::unique_ptr<device::Stream> stream, uint32_t copies_max)
    : own_(std::move(stream)), ways_{FixedRing<Slot>(copies_max), FixedRing<Slot>(0)} {}

CopyLane::CopyLane(GpuStreams* gpu, uint32_t copies_max, shm::FlagPages flags, uint64_t flags_base)
    : gpu_(gpu),
      flags_(flags),
      flags_base_(flags_base),
      ways_{FixedRing<Slot>(copies_max), FixedRing<Slot>(copies_max)},
      awaited_at_(copies_max) {
  ++gpu_->sessions;
}

CopyLane::~CopyLane() {
  if (gpu_ == nullptr) return;
  --gpu_->sessions;
  for (const LaneWay way : {LaneWay::kToRcache, LaneWay::kToPool}) {
    FixedRing<Slot>& slots = ways_[static_cast<size_t>(way)];
    for (; !slots.empty(); slots.Pop())
      gpu_->End(way, slots.Front().copy.bytes, slots.Front().awaited);
  }
}

void CopyLane::NoteArrival(const shm::Request& request, uint64_t bytes) {
  const uint64_t ahead = std::min<uint64_t>(shm::UsesAhead(request), kUsesAheadMax) * bytes;
  awaited_at_[request.counter % awaited_at_.size()] =
      gpu_->root().way(WayOf(request)).begun + ahead;
}

void CopyLane::AddSpan(const Copy& copy) const {
  const auto op = static_cast<shm::Op>(copy.request.op);
  const SpanKind kind = op == shm::Op::kFetch            ? SpanKind::kFetch
                        : op == shm::Op::kSubmitGradient ? SpanKind::kGradient
                                                         : SpanKind::kPut;
  spans_->Add({.kind = kind,
               .by = rank_,
               .chunk = copy.request.chunk,
               .begin_ns = copy.begin_ns,
               .end_ns = spans_->NowNs()});
}

TP_HOT void CopyLane::Start(const Copy& copy, void* to, const void* from) {
  bytes_in_flight_ += copy.bytes;
  bytes_started_ += copy.bytes;
  if (gpu_ != nullptr) return StartShared(copy, to, from);
  Slot slot{copy};
  slot.copy.begin_ns = BeginNs();
  own_->Copy(to, from, copy.bytes);
  slot.marker = own_->Record();
  ways_[0].Push(slot);
}

void CopyLane::StartZero(const Copy& copy, void* to) {
  TP_CHECK(own_ != nullptr, "a lane of a GPU copies, and zeroes nothing");
  bytes_in_flight_ += copy.bytes;
  bytes_started_ += copy.bytes;
  own_->Zero(to, copy.bytes);
  ways_[0].Push({copy, own_->Record()});
}

// Two copies from or to the same bytes run in the order in which they began.
uint32_t CopyLane::StreamFor(const shm::Request& request) const {
  const LaneWay way = WayOf(request);
  const FixedRing<Slot>& slots = ways_[static_cast<size_t>(way)];
  for (uint32_t i = slots.size(); i > 0; --i) {
    const Slot& other = slots.at(i - 1);
    const shm::Request& theirs = other.copy.request;
    const bool same =
        theirs.chunk == request.chunk || theirs.rcache_offset == request.rcache_offset;
    if (same && !TP_PLANTED("traffic.same_chunk_on_two_streams")) return other.stream;
  }
  return gpu_->TakeTurn(way);
}

void CopyLane::StartShared(const Copy& copy, void* to, const void* from) {
  const LaneWay way = WayOf(copy.request);
  const uint32_t number = StreamFor(copy.request);
  device::Stream* stream = gpu_->stream(way, number);
  if (!gpu_->gpu().IsRegistered(way == LaneWay::kToRcache ? from : to)) ++gpu_->copies_unregistered;
  Slot slot{copy};
  slot.copy.begin_ns = BeginNs();
  stream->Copy(to, from, copy.bytes);
  // A gradient counts as copied only when kept memory says so, so the loop writes its `done` word.
  if (way == LaneWay::kToRcache && shm::HasFlags(copy.request) &&
      gpu_->gpu().done().by == DoneBy::kStream) {
    const uint64_t done = flags_base_ + copy.request.counter;
    stream->WriteFlag(flags_.done(done), done);
  }
  if (TP_PLANTED("traffic.done_before_the_copy")) WriteDone(copy.request);

  slot.marker = stream->Record();
  slot.awaited = IsAwaited(copy.request);
  slot.stream = number;
  ways_[static_cast<size_t>(way)].Push(slot);
  gpu_->Begin(way, copy.bytes, slot.awaited);
}

TP_HOT bool CopyLane::TakeDone(Copy* copy) {
  if (gpu_ != nullptr) return TakeShared(copy);
  FixedRing<Slot>& slots = ways_[0];
  if (slots.empty() || !own_->Passed(slots.Front().marker)) return false;
  *copy = slots.Front().copy;
  bytes_in_flight_ -= copy->bytes;
  slots.Pop();
  Ended(*copy);
  return true;
}

bool CopyLane::TakeShared(Copy* copy) {
  for (const LaneWay way : {LaneWay::kToRcache, LaneWay::kToPool}) {
    FixedRing<Slot>& slots = ways_[static_cast<size_t>(way)];
    if (slots.empty() || !gpu_->stream(way, slots.Front().stream)->Passed(slots.Front().marker))
      continue;

    *copy = slots.Front().copy;
    bytes_in_flight_ -= copy->bytes;
    gpu_->End(way, copy->bytes, slots.Front().awaited);
    slots.Pop();
    if (way == LaneWay::kToRcache) WriteDone(copy->request);
    Ended(*copy);
    return true;
  }
  return false;
}

// Writes the `done` word of a fetch unless the stream does.
void CopyLane::WriteDone(const shm::Request& request) const {
  if (!shm::HasFlags(request) || gpu_->gpu().done().by == DoneBy::kStream) return;
  const uint64_t done = flags_base_ + request.counter;
  TP_POINT("server.fetch_passed");
  flags_.done(done)->store(done, std::memory_order_release);
}

TP_HOT bool CopyLane::Progress(uint64_t bytes_max) {
  if (size() == 0) return false;
  return gpu_ == nullptr ? own_->Progress(bytes_max) : gpu_->Progress(bytes_max);
}

bool CopyLane::AllPassed() {
  for (const LaneWay way : {LaneWay::kToRcache, LaneWay::kToPool}) {
    const FixedRing<Slot>& slots = ways_[static_cast<size_t>(way)];
    // Copies of one direction may be on several streams, and the last copy says nothing about the
    // other streams.
    for (uint32_t i = slots.size(); i > 0; --i) {
      const Slot& slot = slots.at(i - 1);
      device::Stream* stream = own_ != nullptr ? own_.get() : gpu_->stream(way, slot.stream);
      if (!stream->Passed(slot.marker)) return false;
    }
  }
  return true;
}

}  // namespace tidepool::memserver

#include "memserver/traffic/copy_lane.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

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
    for (; !slots.empty(); slots.Pop()) gpu_->End(way, slots.Front().copy.bytes, slots.Front().awaited);
  }
}

void CopyLane::NoteArrival(const shm::Request& request, uint64_t bytes) {
  const uint64_t ahead = std::min<uint64_t>(shm::UsesAhead(request), kUsesAheadMax) * bytes;
  awaited_at_[request.counter % awaited_at_.size()] = gpu_->root().way(WayOf(request)).begun + ahead;
}

void CopyLane::Start(const Copy& copy, void* to, const void* from) {
  bytes_in_flight_ += copy.bytes;
  bytes_started_ += copy.bytes;
  if (gpu_ != nullptr) return StartShared(copy, to, from);
  own_->Copy(to, from, copy.bytes);
  ways_[0].Push({copy, own_->Record()});
}

void CopyLane::StartShared(const Copy& copy, void* to, const void* from) {
  const LaneWay way = WayOf(copy.request);
  device::Stream* stream = gpu_->stream(way);
  if (!gpu_->gpu().IsRegistered(way == LaneWay::kToRcache ? from : to)) ++gpu_->copies_unregistered;
  stream->Copy(to, from, copy.bytes);
  // A gradient counts as copied only when kept memory says so: its word is written by the loop.
  if (way == LaneWay::kToRcache && shm::HasFlags(copy.request)) {
    const uint64_t number = flags_base_ + copy.request.counter;
    stream->WriteFlag(flags_.done(number), number);
  }
  const bool awaited = IsAwaited(copy.request);
  ways_[static_cast<size_t>(way)].Push({copy, stream->Record(), awaited});
  gpu_->Begin(way, copy.bytes, awaited);
}

bool CopyLane::TakeDone(Copy* copy) {
  if (gpu_ != nullptr) return TakeShared(copy);
  FixedRing<Slot>& slots = ways_[0];
  if (slots.empty() || !own_->Passed(slots.Front().marker)) return false;
  *copy = slots.Front().copy;
  bytes_in_flight_ -= copy->bytes;
  slots.Pop();
  return true;
}

bool CopyLane::TakeShared(Copy* copy) {
  for (const LaneWay way : {LaneWay::kToRcache, LaneWay::kToPool}) {
    FixedRing<Slot>& slots = ways_[static_cast<size_t>(way)];
    if (slots.empty() || !gpu_->stream(way)->Passed(slots.Front().marker)) continue;
    *copy = slots.Front().copy;
    bytes_in_flight_ -= copy->bytes;
    gpu_->End(way, copy->bytes, slots.Front().awaited);
    slots.Pop();
    return true;
  }
  return false;
}

bool CopyLane::Progress(uint64_t bytes_max) {
  if (size() == 0) return false;
  if (gpu_ == nullptr) return own_->Progress(bytes_max);
  const bool in = gpu_->stream(LaneWay::kToRcache)->Progress(bytes_max);
  return gpu_->stream(LaneWay::kToPool)->Progress(bytes_max) || in;
}

bool CopyLane::AllPassed() {
  for (const LaneWay way : {LaneWay::kToRcache, LaneWay::kToPool}) {
    const FixedRing<Slot>& slots = ways_[static_cast<size_t>(way)];
    if (slots.empty()) continue;
    device::Stream* stream = own_ != nullptr ? own_.get() : gpu_->stream(way);
    if (!stream->Passed(slots.at(slots.size() - 1).marker)) return false;
  }
  return true;
}

}  // namespace tidepool::memserver

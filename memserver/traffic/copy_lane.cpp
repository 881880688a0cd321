#include "memserver/traffic/copy_lane.h"

#include <utility>

#include "base/check.h"

namespace tidepool::memserver {

CopyLane::CopyLane(std::unique_ptr<device::Stream> stream, uint32_t copies_max)
    : own_(std::move(stream)), ways_{FixedRing<Slot>(copies_max), FixedRing<Slot>(0)} {}

CopyLane::CopyLane(GpuStreams* gpu, uint32_t copies_max, shm::FlagPages flags, uint64_t flags_base)
    : gpu_(gpu), flags_(flags), flags_base_(flags_base), ways_{FixedRing<Slot>(copies_max), FixedRing<Slot>(copies_max)} {
  ++gpu_->sessions;
}

CopyLane::~CopyLane() {
  if (gpu_ == nullptr) return;
  --gpu_->sessions;
  for (const LaneWay way : {LaneWay::kToRcache, LaneWay::kToPool}) {
    FixedRing<Slot>& slots = ways_[static_cast<size_t>(way)];
    SharedStream& shared = gpu_->way(way);
    for (; !slots.empty(); slots.Pop()) {
      shared.bytes -= slots.Front().copy.bytes;
      --shared.copies;
    }
  }
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
  SharedStream& shared = gpu_->way(way);
  if (!gpu_->gpu().IsRegistered(way == LaneWay::kToRcache ? from : to)) ++gpu_->copies_unregistered;
  shared.stream->Copy(to, from, copy.bytes);
  // A gradient counts as copied only when kept memory says so: its word is written by the loop.
  if (way == LaneWay::kToRcache && shm::HasFlags(copy.request)) {
    const uint64_t number = flags_base_ + copy.request.counter;
    shared.stream->WriteFlag(flags_.done(number), number);
  }
  ways_[static_cast<size_t>(way)].Push({copy, shared.stream->Record()});
  shared.bytes += copy.bytes;
  ++shared.copies;
  (way == LaneWay::kToRcache ? gpu_->bytes_to_rcache : gpu_->bytes_to_pool) += copy.bytes;
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
    SharedStream& shared = gpu_->way(way);
    if (slots.empty() || !shared.stream->Passed(slots.Front().marker)) continue;
    *copy = slots.Front().copy;
    bytes_in_flight_ -= copy->bytes;
    shared.bytes -= copy->bytes;
    --shared.copies;
    slots.Pop();
    return true;
  }
  return false;
}

bool CopyLane::Progress(uint64_t bytes_max) {
  if (size() == 0) return false;
  if (gpu_ == nullptr) return own_->Progress(bytes_max);
  const bool in = gpu_->way(LaneWay::kToRcache).stream->Progress(bytes_max);
  return gpu_->way(LaneWay::kToPool).stream->Progress(bytes_max) || in;
}

bool CopyLane::AllPassed() {
  for (const LaneWay way : {LaneWay::kToRcache, LaneWay::kToPool}) {
    const FixedRing<Slot>& slots = ways_[static_cast<size_t>(way)];
    if (slots.empty()) continue;
    device::Stream* stream = own_ != nullptr ? own_.get() : gpu_->way(way).stream.get();
    if (!stream->Passed(slots.at(slots.size() - 1).marker)) return false;
  }
  return true;
}

}  // namespace tidepool::memserver

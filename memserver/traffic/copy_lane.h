// CopyLane: the copies of one session, in order, between the host pool and the session's rCache.
//
// One thread (the serve loop). Both memories must live until a copy was taken back by TakeDone or the lane is destroyed; destroying it
// drops the copies that have not begun. At most kOutstandingMax copies are in it (their requests are limited to that number).
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "device/device.h"
#include "memserver/traffic/fixed_ring.h"
#include "shm/messages.h"

namespace tidepool::memserver {

// A copy in flight: the request that it serves and what must be known when it has ended.
struct Copy {
  shm::Request request;
  uint64_t bytes = 0;
  uint32_t attempt = 0;     // of the open step (gradients): a copy of an earlier attempt changes nothing any more
  bool to_staging = false;  // into the staging buffer, not into the slot (gradients) or the master (weights)
};

class CopyLane {
 public:
  CopyLane(std::unique_ptr<device::Stream> stream, uint32_t copies_max);

  void Start(const Copy& copy, void* to, const void* from);
  // The oldest copy, once it has ended; false when it has not.
  bool TakeDone(Copy* copy);
  // Copies at most about `bytes_max` where the loop's thread does the copying; true when something was done.
  bool Progress(uint64_t bytes_max) { return !slots_.empty() && stream_->Progress(bytes_max); }

  uint32_t size() const { return slots_.size(); }
  uint64_t bytes_in_flight() const { return bytes_in_flight_; }
  uint64_t bytes_started() const { return bytes_started_; }  // ever
  // The i-th oldest copy in flight.
  const Copy& at(uint32_t i) const { return slots_.at(i).copy; }
  device::Stream& stream() { return *stream_; }

 private:
  struct Slot {
    Copy copy;
    device::Stream::Marker marker = 0;
  };
  const std::unique_ptr<device::Stream> stream_;
  FixedRing<Slot> slots_;
  uint64_t bytes_in_flight_ = 0, bytes_started_ = 0;
};

}  // namespace tidepool::memserver

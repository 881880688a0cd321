#include "memserver/traffic/copy_lane.h"

#include <utility>

namespace tidepool::memserver {

CopyLane::CopyLane(std::unique_ptr<device::Stream> stream, uint32_t copies_max) : stream_(std::move(stream)), slots_(copies_max) {}

void CopyLane::Start(const Copy& copy, void* to, const void* from) {
  stream_->Copy(to, from, copy.bytes);
  slots_.Push({copy, stream_->Record()});
  bytes_in_flight_ += copy.bytes;
  bytes_started_ += copy.bytes;
}

bool CopyLane::TakeDone(Copy* copy) {
  if (slots_.empty() || !stream_->Passed(slots_.Front().marker)) return false;
  *copy = slots_.Front().copy;
  bytes_in_flight_ -= copy->bytes;
  slots_.Pop();
  return true;
}

}  // namespace tidepool::memserver

// HostStream: the common part of the host's streams: the number of the last marker that has passed,
// for the streams that wait for it.
//
// A stream that waits for a marker of another one keeps that number alive, not the stream: once
// that stream is gone, none of its markers passes any more.
#pragma once

#include <memory>

#include "device/device.h"

namespace tidepool::device {

class HostStream : public Stream {
 public:
  const std::shared_ptr<Flag>& passed() const { return passed_; }
  bool Passed(Marker marker) override { return passed_->load(std::memory_order_acquire) >= marker; }

 private:
  const std::shared_ptr<Flag> passed_ = std::make_shared<Flag>(0);
};

// The counter of markers passed by this stream, which must be one of the host device.
std::shared_ptr<Flag> PassedOf(const Stream* stream);

}  // namespace tidepool::device

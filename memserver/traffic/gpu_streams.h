// GpuStreams: the two streams of one GPU, one each way, which the sessions on it share; and how much is on them.
//
// One thread (the serve loop). The server never makes them wait for a trainer: a copy is put on a stream only when its flag says that it
// may begin. At most about kGpuBytesInFlight are on a stream, so that what comes next, of whatever job, does not wait behind a long queue;
// and two copies at least, so that the copy engine has the next one when the one before ends.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/units.h"
#include "device/device.h"
#include "memserver/traffic/gpu.h"

namespace tidepool::memserver {

// About 1.2 ms at 55 GB/s: the longest that a copy waits for those before it, but for the end of one that is larger.
inline constexpr uint64_t kGpuBytesInFlight = 64 * kMiB;
inline constexpr uint32_t kGpuCopiesMin = 2;

enum class LaneWay : uint32_t { kToRcache = 0, kToPool = 1 };

struct SharedStream {
  std::unique_ptr<device::Stream> stream;
  uint64_t bytes = 0;  // in flight
  uint32_t copies = 0;
  bool HasRoom() const { return copies < kGpuCopiesMin || bytes < kGpuBytesInFlight; }
};

class GpuStreams {
 public:
  // Errors: those of Device::OpenStream.
  static Result<std::unique_ptr<GpuStreams>> Open(Gpu* gpu) {
    auto streams = std::make_unique<GpuStreams>(gpu);
    for (SharedStream& each : streams->ways_) {
      TP_ASSIGN_OR_RETURN(each.stream, gpu->device().OpenStream());
    }
    return streams;
  }
  explicit GpuStreams(Gpu* gpu) : gpu_(gpu) {}

  Gpu& gpu() const { return *gpu_; }
  SharedStream& way(LaneWay way) { return ways_[static_cast<size_t>(way)]; }
  // The first error of either; after it nothing more is done on this GPU.
  Status status() const {
    const Status first = ways_[0].stream->status();
    return first.ok() ? ways_[1].stream->status() : first;
  }
  bool failed() const { return !ways_[0].stream->status().ok() || !ways_[1].stream->status().ok(); }

  bool failure_told = false;  // its sessions were ended
  uint32_t sessions = 0;
  uint64_t bytes_to_rcache = 0, bytes_to_pool = 0;  // since it was opened
  uint64_t copies_unregistered = 0;                 // from or to host memory that is not pinned

 private:
  Gpu* const gpu_;
  std::array<SharedStream, 2> ways_;
};

}  // namespace tidepool::memserver

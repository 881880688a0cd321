// GpuStreams: the four streams of one GPU, two in each direction, which its sessions share; and the
// amount of work on them.
//
// Copies of a direction take its two streams in turn, so that the copy engine has the next one even
// while a stream writes a flag behind a copy. Copies on different streams may end in any order. One
// thread (the serve loop). The server never makes streams wait for a trainer: a copy is put on a
// stream only once its flag says that it may begin. At most about kGpuBytesInFlight are in flight
// through a root complex, so that the next copy, of whatever job and GPU, does not wait behind a
// long queue; but each GPU may have two copies on its streams, so that its copy engine has the next
// one when the one before ends. That exception does not apply to copies that nobody awaits while a
// rank behind the same root complex stands still for a copy of another GPU.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "base/units.h"
#include "device/device.h"
#include "memserver/traffic/gpu.h"
#include "memserver/traffic/root_complex.h"

namespace tidepool::memserver {

// About 1.2 ms at 55 GB/s: the longest that a copy waits for those before it, apart from the rest
// of a larger one.
inline constexpr uint64_t kGpuBytesInFlight = 64 * kMiB;
inline constexpr uint32_t kGpuCopiesMin = 2;

inline constexpr uint32_t kStreamsAWay = 2;

// The two streams of one direction, and the work on them.
struct SharedWay {
  std::array<std::unique_ptr<device::Stream>, kStreamsAWay> streams;
  uint32_t next = 0;     // whose turn it is
  uint32_t copies = 0;   // in flight
  uint32_t awaited = 0;  // of them
  uint64_t bytes = 0;    // total begun
};

class GpuStreams {
 public:
  // The root complex outlives the streams. Errors: those of Gpu::TakeStream.
  static Result<std::unique_ptr<GpuStreams>> Open(Gpu* gpu, RootComplex* root) {
    auto streams = std::make_unique<GpuStreams>(gpu, root);
    for (SharedWay& way : streams->ways_) {
      for (std::unique_ptr<device::Stream>& stream : way.streams) {
        TP_ASSIGN_OR_RETURN(stream, gpu->TakeStream());
      }
    }
    return streams;
  }
  GpuStreams(Gpu* gpu, RootComplex* root) : gpu_(gpu), root_(root) {}

  // The GPU that the streams belong to.
  Gpu& gpu() const { return *gpu_; }
  RootComplex& root() const { return *root_; }
  device::Stream* stream(LaneWay way, uint32_t number) const {
    return of(way).streams[number].get();
  }
  // The stream for the next copy that may go on either.
  uint32_t TakeTurn(LaneWay way) {
    SharedWay& own = ways_[static_cast<size_t>(way)];
    return std::exchange(own.next, (own.next + 1) % kStreamsAWay);
  }
  const SharedWay& of(LaneWay way) const { return ways_[static_cast<size_t>(way)]; }

  // True if one more copy may begin.
  bool HasRoom(LaneWay way, bool awaited) const {
    const SharedWay& own = of(way);
    const RootWay& all = std::as_const(*root_).way(way);
    return all.bytes < root_->bytes_max() ||
           (own.copies < kGpuCopiesMin && (awaited || all.awaited == own.awaited));
  }
  void Begin(LaneWay way, uint64_t bytes, bool awaited) {
    SharedWay& own = ways_[static_cast<size_t>(way)];
    RootWay& all = root_->way(way);
    ++own.copies;
    own.awaited += awaited ? 1 : 0;
    own.bytes += bytes;
    all.bytes += bytes;
    all.awaited += awaited ? 1 : 0;
    all.begun += bytes;
  }
  void End(LaneWay way, uint64_t bytes, bool awaited) {
    SharedWay& own = ways_[static_cast<size_t>(way)];
    RootWay& all = root_->way(way);
    --own.copies;
    own.awaited -= awaited ? 1 : 0;
    all.bytes -= bytes;
    all.awaited -= awaited ? 1 : 0;
  }

  // The first error of any stream; after it the GPU is no longer used.
  Status status() const {
    for (const SharedWay& way : ways_) {
      for (const auto& stream : way.streams) {
        if (!stream->status().ok()) return stream->status();
      }
    }
    return Status();
  }
  bool failed() const { return !status().ok(); }
  bool Progress(uint64_t bytes_max) {
    bool worked = false;
    for (const SharedWay& way : ways_) {
      for (const auto& stream : way.streams) worked |= stream->Progress(bytes_max);
    }
    return worked;
  }

  bool failure_told = false;  // its sessions were ended
  uint32_t sessions = 0;
  uint64_t copies_unregistered = 0;  // from or to host memory that is not pinned

 private:
  Gpu* const gpu_;
  RootComplex* const root_;
  std::array<SharedWay, kLaneWays> ways_;
};

}  // namespace tidepool::memserver

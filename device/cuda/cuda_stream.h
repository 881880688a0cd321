// CudaStream: a stream of the CUDA driver behind device.h: its own, or one made by other code.
//
// One thread. The first error of any call is kept (status); after it nothing is added to the
// driver's stream and no marker passes. Invariants:
//  1. marks_ holds the events of the markers passed_ + 1 ... last_, in order (fewer after an
//     error);
//  2. an event is reused only when it has passed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/cuda/cuda_context.h"
#include "device/device.h"

namespace tidepool::device {

class CudaStream final : public Stream {
 public:
  // Opens a stream. Errors: kCudaFailed, kDeviceMemoryShort.
  static Result<std::unique_ptr<Stream>> Open(std::shared_ptr<CudaContext> context);
  // `owned`: destroyed with this object; work in it continues.
  CudaStream(std::shared_ptr<CudaContext> context, CUstream_st* native, bool owned)
      : context_(std::move(context)), native_(native), owned_(owned) {}
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  CUstream_st* native() const { return native_; }

  void Copy(void* dst, const void* src, uint64_t bytes) override;
  void Zero(void* dst, uint64_t bytes) override;
  void Launch(const Kernel& kernel, const void* arguments, uint64_t items) override;
  void WaitFlag(const Flag* flag, uint64_t value) override;
  void WriteFlag(Flag* flag, uint64_t value) override;
  Marker Record() override;
  bool Passed(Marker marker) override;
  void WaitMarker(Stream* other, Marker marker) override;
  Status status() const override { return status_; }
  bool Progress(uint64_t) override { return false; }
  // Yields the CPU while it waits.
  void Synchronize(Marker marker) override;

 private:
  // Makes the context current; false after an error.
  bool Begin();
  // Keeps the first error; true if there is none.
  bool Latch(Status status);
  // The GPU's address of a flag; 0, and an error, if it is not in registered memory.
  CudaAddress AddressOf(const Flag* flag);
  CUevent_st* NewEvent();
  // Notes that the events of all markers up to `marker` have passed.
  void Pass(Marker marker);

  const std::shared_ptr<CudaContext> context_;
  CUstream_st* const native_;
  const bool owned_;
  Status status_;
  Marker last_ = 0, passed_ = 0;
  std::deque<CUevent_st*> marks_;
  std::vector<CUevent_st*> spare_;
};

}  // namespace tidepool::device

// PlainGpu: a GPU as used by a program without a memserver: memory allocated by the driver,
// sequential copies, and none of our code but the table of driver functions. The baseline for the
// product's copies.
//
// One thread. Any failure ends the program (bench/harness/row.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_driver.h"

namespace tidepool::bench {

// Host memory of cuMemHostAlloc (not zeroed); freed with this object.
class PinnedBytes {
 public:
  ~PinnedBytes();
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;
  std::byte* data() const { return data_; }

 private:
  friend class PlainGpu;
  PinnedBytes() = default;
  std::byte* data_ = nullptr;
};

// GPU memory of the driver's plain allocator; freed with this object.
class GpuBytes {
 public:
  ~GpuBytes();
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;
  std::byte* data() const { return data_; }

 private:
  friend class PlainGpu;
  GpuBytes() = default;
  const device::CudaDriver* driver_ = nullptr;
  std::byte* data_ = nullptr;
};

// A non-blocking driver stream; destroyed with this object.
class PlainStream {
 public:
  ~PlainStream();
  PlainStream(const PlainStream&) = delete;
  PlainStream& operator=(const PlainStream&) = delete;
  // Start work, and wait for all of it to complete.
  void Copy(void* to, const void* from, uint64_t bytes);
  void Fill(void* at, uint64_t bytes);  // zeroes
  void Synchronize();
  // The driver's handle.
  void* native() const { return stream_; }

 private:
  friend class PlainGpu;
  PlainStream() = default;
  const device::CudaDriver* driver_ = nullptr;
  CUstream_st* stream_ = nullptr;
};

class PlainGpu {
 public:
  // Uses the context that `device` made current on this thread.
  explicit PlainGpu(const device::CudaDevice& device);

  // False: this driver has no cuMemHostAlloc (a fake for tests), and TakePinned must not be called.
  static bool HasPinned();
  std::unique_ptr<PinnedBytes> TakePinned(uint64_t bytes);
  std::unique_ptr<GpuBytes> TakeGpu(uint64_t bytes);
  std::unique_ptr<PlainStream> OpenStream();

 private:
  const device::CudaDriver* driver_;
};

}  // namespace tidepool::bench

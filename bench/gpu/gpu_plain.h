// PlainGpu: a GPU as a program without a memserver uses it: memory that the driver allocates,
// copies one after another, and nothing of ours in between but the table of the driver's functions.
// What the product's copies are held against.
//
// One thread. Any failure ends the program (bench/harness/row.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_driver.h"

namespace tidepool::bench {

// Host memory of cuMemHostAlloc (zeroed by nobody); freed with this object.
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

// Memory of the GPU by the driver's plain allocation; freed with this object.
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

// A stream of the driver, non-blocking; destroyed with this object.
class PlainStream {
 public:
  ~PlainStream();
  PlainStream(const PlainStream&) = delete;
  PlainStream& operator=(const PlainStream&) = delete;
  // Start work, and wait for all of it.
  void Copy(void* to, const void* from, uint64_t bytes);
  void Fill(void* at, uint64_t bytes);  // with zeros
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

  // False: this driver has no cuMemHostAlloc (a stand-in for tests), and TakePinned must not be
  // called.
  static bool HasPinned();
  std::unique_ptr<PinnedBytes> TakePinned(uint64_t bytes);
  std::unique_ptr<GpuBytes> TakeGpu(uint64_t bytes);
  std::unique_ptr<PlainStream> OpenStream();

 private:
  const device::CudaDriver* driver_;
};

}  // namespace tidepool::bench

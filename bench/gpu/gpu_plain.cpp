#include "bench/gpu/gpu_plain.h"

#include <dlfcn.h>

#include <string>

#include "bench/harness/row.h"

namespace tidepool::bench {
namespace {

using HostAlloc = int (*)(void** memory, size_t bytes, unsigned flags);
using HostFree = int (*)(void* memory);

// A function of the library that the product has loaded; null if missing.
template <typename Function>
Function Find(const char* name) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

device::CudaAddress AddressOf(const void* memory) {
  return reinterpret_cast<device::CudaAddress>(memory);
}

}  // namespace

PinnedBytes::~PinnedBytes() {
  Find<HostFree>("cuMemFreeHost")(data_);
}

GpuBytes::~GpuBytes() {
  (void)driver_->memory_free(AddressOf(data_));
}

PlainStream::~PlainStream() {
  (void)driver_->stream_synchronize(stream_);
  (void)driver_->stream_destroy(stream_);
}

void PlainStream::Copy(void* to, const void* from, uint64_t bytes) {
  OrDie(driver_->Try("a plain copy", driver_->copy, AddressOf(to), AddressOf(from), size_t{bytes},
                     stream_));
}

void PlainStream::Fill(void* at, uint64_t bytes) {
  OrDie(driver_->Try("filling memory", driver_->fill, AddressOf(at), static_cast<unsigned char>(0),
                     size_t{bytes}, stream_));
}

void PlainStream::Synchronize() {
  OrDie(driver_->Try("waiting for plain copies", driver_->stream_synchronize, stream_));
}

// The device keeps the context; asking for its memory makes that context current on this thread.
PlainGpu::PlainGpu(const device::CudaDevice& device) : driver_(OrDie(device::CudaDriver::Load())) {
  OrDie(device.MemoryBytes().status());
}

bool PlainGpu::HasPinned() {
  return Find<HostAlloc>("cuMemHostAlloc") != nullptr && Find<HostFree>("cuMemFreeHost") != nullptr;
}

std::unique_ptr<PinnedBytes> PlainGpu::TakePinned(uint64_t bytes) {
  std::unique_ptr<PinnedBytes> pinned(new PinnedBytes());
  void* memory = nullptr;
  const int code = Find<HostAlloc>("cuMemHostAlloc")(&memory, bytes, 0);
  if (code != 0)
    Die(driver_
            ->Error("allocating " + std::to_string(bytes) + " bytes of pinned memory",
                    "cuMemHostAlloc", code)
            .Format());
  pinned->data_ = static_cast<std::byte*>(memory);
  return pinned;
}

std::unique_ptr<GpuBytes> PlainGpu::TakeGpu(uint64_t bytes) {
  std::unique_ptr<GpuBytes> memory(new GpuBytes());
  device::CudaAddress address = 0;
  OrDie(driver_->Try("allocating " + std::to_string(bytes) + " bytes of the GPU",
                     driver_->memory_alloc, &address, size_t{bytes}));
  memory->driver_ = driver_;
  memory->data_ = reinterpret_cast<std::byte*>(address);
  return memory;
}

std::unique_ptr<PlainStream> PlainGpu::OpenStream() {
  std::unique_ptr<PlainStream> stream(new PlainStream());
  OrDie(driver_->Try("opening a stream", driver_->stream_create, &stream->stream_,
                     device::kCudaStreamNonBlocking));
  stream->driver_ = driver_;
  return stream;
}

}  // namespace tidepool::bench

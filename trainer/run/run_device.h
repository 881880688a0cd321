// RunDevice: where one rank computes: the host, or one GPU, through LibTorch and through the
// driver's own streams.
//
// One thread (the trainer's main thread), from Open to the end: on a GPU it makes a side stream of
// LibTorch's pool this thread's current one, so that everything LibTorch does on this thread,
// forward, backward and the allocator's reuse of memory, is in the order of one stream. Events
// order the work of other streams of this process (the groups') with it, flags the server's copies
// (trainer/cache); the CPU orders nothing.
//
// LibTorch's CUDA part is a library of its own (libtorch_cuda.so beside libtorch_cpu.so), with
// which nothing here is linked: Prepare loads it when a GPU is used. Calls of it go through c10's
// interfaces for devices of any kind.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "device/ballast.h"
#include "device/cuda/cuda_device.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/advice/device_memory.h"
#include "trainer/advice/device_place.h"
#include "trainer/model/gpt.h"
#include "trainer/run/run_options.h"
#include "trainer/run/run_session.h"
#include "trainer/output/step_trace.h"

namespace tidepool::trainer {

class RunDevice {
 public:
  // Loads what LibTorch needs for the device that --device asks for. To be called before LibTorch's
  // first operator, so also before the profile of a step: there LibTorch asks whether there is
  // CUDA, and remembers the answer for good. Errors: as Open.
  static Status Prepare(const DeviceOptions& options, const RankPlace& place);
  // Opens what --device asks for, as far as this machine has it. `clock` outlives the device.
  // Errors: kUsageError, kCudaUnavailable (also: LibTorch's CUDA part cannot be loaded; the text
  // has the loader's words and the remedy), kCudaFailed, kDeviceMemoryShort (no room for a
  // context).
  static Result<std::unique_ptr<RunDevice>> Open(const DeviceOptions& options,
                                                 const RankPlace& place, Clock* clock);
  ~RunDevice();

  // True where the rank computes on a GPU.
  bool is_gpu() const { return cuda_ != nullptr; }
  // Number of GPUs that the ranks of this node are spread over; 0 on the host.
  uint32_t gpus() const { return gpus_; }
  // One line for the start of a run: which device, and why.
  const std::string& description() const { return description_; }

  // Makes the rCache of a GPU, exportable, once for all attempts of the run. Holds the memory that
  // memserver's context will need until the context comes, and again from then on, for a server
  // started in its place. Does nothing on the host. Errors: kDeviceMemoryShort, kCudaFailed.
  Status MakeRcache(uint64_t bytes);
  // What a session needs that brings the rCache, and whose flags the GPU's streams must reach.
  SessionDevice ForSession();
  // Null pointers on the host.
  CacheStreams streams();

  // Makes parameters that take no memory until an engine places them.
  ParameterMaker MakerOf(DType dtype) const;
  // int64 [sequences][tokens] there; a GPU's is on its way when this returns (from pinned memory).
  at::Tensor Tokens(const std::vector<int64_t>& tokens, uint64_t sequences, uint64_t length) const;
  // Times of the current stream, for a trace; null functions on the host.
  DeviceTimer Timer();
  // Begins a new step of measuring: DeviceShares::allocated is the largest since.
  void ResetPeak();
  // The shares of this run's GPU; those that only the plan knows are left 0. Errors: kCudaFailed.
  Result<DeviceShares> Shares() const;

 private:
  RunDevice(std::string description, Clock* clock)
      : description_(std::move(description)), clock_(clock) {}
  Status OpenGpu(const device::Gpu& gpu);
  Status TellSharedQueues();
  // Copies to this offset of the GPU's rCache; the bytes are there when this returns.
  Status CopyIn(uint64_t rcache_offset, std::span<const std::byte> bytes);
  Status TakeFlags(const client::Attachment& attachment);
  void GiveUpFlags();
  void MakeRoom(bool server_comes);
  // Waits until all streams have done what was put into them, up to a deadline.
  void Drain();

  std::string description_;
  Clock* const clock_;
  c10::Device torch_device_{c10::DeviceType::CPU};
  // For a GPU.
  std::unique_ptr<device::CudaDevice> cuda_;
  std::optional<c10::StreamGuard> current_;
  std::unique_ptr<device::Stream> compute_, recycle_, group_;
  bool shared_ = false;
  uint32_t gpus_ = 0;
  std::unique_ptr<device::Ballast> server_room_;
  UniqueFd rcache_fd_;
  std::unique_ptr<device::Memory> rcache_;
  std::unique_ptr<device::Registration> flags_;
  std::vector<c10::Event> marks_;  // of a traced step
};

// Loads LibTorch's CUDA part, once in a process. Errors: kCudaUnavailable.
Status LoadTorchCuda();

}  // namespace tidepool::trainer

// RunDevice: the device that one rank computes on, the host or one GPU, through LibTorch and the
// driver's own streams.
//
// One thread (the trainer's main thread), from Open to destruction. On a GPU it makes a side stream
// of LibTorch's pool this thread's current stream, so that all LibTorch work on this thread
// (forward, backward, the allocator's reuse of memory) is ordered by one stream. Events order this
// process's other streams (the groups') with it, flags the server's copies (trainer/cache); the CPU
// orders nothing.
//
// LibTorch's CUDA part is a separate library (libtorch_cuda.so beside libtorch_cpu.so), to which
// this code is not linked: Prepare loads it if a GPU is used. Calls go through c10's device-generic
// interfaces.
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
  // Loads the libraries that LibTorch needs for --device. Call it before LibTorch's first operator,
  // hence also before the profile of a step: LibTorch checks then whether CUDA exists, and caches
  // the answer. Errors: as Open.
  static Status Prepare(const DeviceOptions& options, const RankPlace& place);
  // Opens the device of --device if this machine has it. `clock` outlives the device. Errors:
  // kUsageError, kCudaUnavailable (also if LibTorch's CUDA part cannot be loaded; the text has the
  // loader's message and the remedy), kCudaFailed, kDeviceMemoryShort (no room for a context).
  static Result<std::unique_ptr<RunDevice>> Open(const DeviceOptions& options,
                                                 const RankPlace& place, Clock* clock);
  ~RunDevice();

  // True where the rank computes on a GPU.
  bool is_gpu() const { return cuda_ != nullptr; }
  // Number of GPUs among which this node's ranks are divided; 0 on the host.
  uint32_t gpus() const { return gpus_; }
  // One line for the start of a run: the device and the reason for it.
  const std::string& description() const { return description_; }

  // Allocates a GPU's rCache, exportable, once for all attempts of the run. Reserves the memory for
  // memserver's context until that context exists, and again afterwards for a server that replaces
  // it. Does nothing on the host. Errors: kDeviceMemoryShort, kCudaFailed.
  Status MakeRcache(uint64_t bytes);
  // The device part of a session: the rCache to bring, and callbacks for the flags.
  SessionDevice ForSession();
  // Null pointers on the host.
  CacheStreams streams();

  // A maker of parameters that take no memory until an engine places them.
  ParameterMaker MakerOf(DType dtype) const;
  // int64 [sequences][tokens] on the device; a GPU's copy (from pinned memory) may still be in
  // flight.
  at::Tensor Tokens(const std::vector<int64_t>& tokens, uint64_t sequences, uint64_t length) const;
  // Timestamps of the current stream, for a trace; null functions on the host.
  DeviceTimer Timer();
  // Starts a new measuring interval: DeviceShares::allocated is the maximum since then.
  void ResetPeak();
  // Memory shares of this run's GPU; those that only the plan knows are 0. Errors: kCudaFailed.
  Result<DeviceShares> Shares() const;

 private:
  RunDevice(std::string description, Clock* clock)
      : description_(std::move(description)), clock_(clock) {}
  Status OpenGpu(const device::Gpu& gpu);
  Status TellSharedQueues();
  // Copies to this offset of the GPU's rCache; blocks until the bytes are there.
  Status CopyIn(uint64_t rcache_offset, std::span<const std::byte> bytes);
  Status TakeFlags(const client::Attachment& attachment);
  void GiveUpFlags();
  void MakeRoom(bool server_comes);
  // Waits, up to a deadline, until all streams have finished their work.
  void Drain();

  std::string description_;
  Clock* const clock_;
  c10::Device torch_device_{c10::DeviceType::CPU};
  // The members below are set on a GPU only.
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

// Loads LibTorch's CUDA part, once per process. Errors: kCudaUnavailable.
Status LoadTorchCuda();

}  // namespace tidepool::trainer

#include "trainer/run/run_device.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/log.h"
#include "base/units.h"
#include "trainer/cache/stream_probe.h"
#include "trainer/engine/torch_errors.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kTorchCuda = "libtorch_cuda.so";
constexpr int64_t kDrainNs = 5 * kNsPerSecond;
constexpr int64_t kPollNs = 20'000;
// A bare context, and page tables for the registered pool: 550 MiB on an H200 with an 8 GiB pool.
constexpr uint64_t kServerRoomBytes = 640 * kMiB;

c10::ScalarType TorchType(DType dtype) {
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kBF16 ? at::kBFloat16 : at::kHalf;
}

Status NoTorchCuda(const std::string& what) {
  return Status(ErrorId::kCudaUnavailable, "LibTorch's CUDA part cannot be used: " + what);
}

Status NotLoaded(const std::string& why) {
  return NoTorchCuda(why).Fix(
      "the CUDA build of torch 2.11.0 needs its NVIDIA packages beside it: `scripts/setup --gpu` "
      "brings them, or point TIDEPOOL_DEPS at an "
      "environment in which torch.cuda.is_available() is true, and build again; --device cpu needs "
      "none of them");
}

// The file beside the library that contains at::globalContext.
std::string TorchCudaPath() {
  Dl_info cpu{};
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &cpu) == 0 || cpu.dli_fname == nullptr)
    return kTorchCuda;
  return std::filesystem::path(cpu.dli_fname).parent_path() / kTorchCuda;
}

Result<DevicePlace> PlaceOf(const DeviceOptions& options, const RankPlace& place) {
  TP_ASSIGN_OR_RETURN(const DeviceWish wish, ParseDeviceWish(options.name));
  if (wish.kind == DeviceWish::Kind::kCpu)
    return ChooseDevice(wish, place, std::vector<device::Gpu>{});
  TP_ASSIGN_OR_RETURN(DevicePlace chosen, ChooseDevice(wish, place, device::ListGpus()));
  if (!chosen.gpu) return chosen;
  const Status loaded = LoadTorchCuda();
  if (loaded.ok()) return chosen;
  if (wish.kind == DeviceWish::Kind::kAuto) return HostInstead(loaded);
  return Status(loaded).Where("--device " + options.name);
}

}  // namespace

Status LoadTorchCuda() {
  const std::string path = TorchCudaPath();
  // RTLD_GLOBAL: libraries that it loads later (linear algebra, run-time kernels) need its symbols.
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* why = dlerror();
    return NotLoaded(why != nullptr ? why : path + " was refused");
  }

  if (at::globalContext().hasCUDA()) return {};
  return NoTorchCuda(path +
                     " is loaded, but its CUDA runtime finds no GPU where the driver shows one")
      .Why(
          "a warning of LibTorch above says more; the driver may be too old for this CUDA, or "
          "LibTorch was asked for a GPU before")
      .Fix(
          "`nvidia-smi` shows the driver's version (CUDA 13 needs 580 or newer); run on the host "
          "with --device cpu");
}

Status RunDevice::Prepare(const DeviceOptions& options, const RankPlace& place) {
  return PlaceOf(options, place).status();
}

Result<std::unique_ptr<RunDevice>> RunDevice::Open(const DeviceOptions& options,
                                                   const RankPlace& place, Clock* clock) {
  TP_ASSIGN_OR_RETURN(const DevicePlace chosen, PlaceOf(options, place));
  std::unique_ptr<RunDevice> device(new RunDevice(Describe(chosen), clock));
  if (!chosen.gpu) return device;
  device->shared_ = chosen.sharers > 1;
  device->gpus_ = chosen.gpus;
  // cuBLAS reads the variable when it initialises.
  if (options.deterministic) (void)setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  Status opened;
  const Status thrown = CatchTorch([&] {
    opened = device->OpenGpu(*chosen.gpu);
    // Some sums, in the backward of attention and embeddings, have a second implementation with a
    // fixed order. Filling new memory would cost time and change no bit.
    at::globalContext().setDeterministicAlgorithms(options.deterministic, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  });
  if (opened.ok()) opened = thrown;
  if (!opened.ok())
    return opened.where().empty() ? std::move(opened).Where("--device " + options.name) : opened;
  return device;
}

Status RunDevice::OpenGpu(const device::Gpu& gpu) {
  torch_device_ = c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpu.ordinal));
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  const c10::impl::VirtualGuardImpl torch(c10::DeviceType::CUDA);
  if (torch.deviceCount() <= gpu.ordinal) {
    return NoTorchCuda("it shows " + std::to_string(torch.deviceCount()) +
                       " GPUs, the driver has a GPU " + std::to_string(gpu.ordinal));
  }
  // Opened before LibTorch, whose error would say less where there is no room for a context.
  TP_ASSIGN_OR_RETURN(cuda_, device::CudaDevice::Open({.ordinal = gpu.ordinal}));
  torch.setDevice(torch_device_);
  // Opened before LibTorch's large stream pool: streams get hardware queues in order of creation.
  TP_ASSIGN_OR_RETURN(recycle_, cuda_->OpenStream());
  TP_ASSIGN_OR_RETURN(group_, cuda_->OpenStream());
  current_.emplace(torch.getStreamFromGlobalPool(torch_device_));
  compute_ = cuda_->Borrow(torch.getStreamNativeHandle(current_->current_stream()));
  description_ += "; rCache " + cuda_->form_note();
  return TellSharedQueues();
}

// Training works without it, but slower, so the cause is logged.
Status RunDevice::TellSharedQueues() {
  device::Stream* const streams[] = {compute_.get(), recycle_.get(), group_.get()};
  TP_ASSIGN_OR_RETURN(const bool beside, RunBesideEachOther(cuda_.get(), streams, clock_));
  if (beside) return {};
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const std::string set = connections == nullptr ? "not set" : connections;
  description_ += "; its streams share queues of the hardware, so transfers hold up operators";
  LogWarn(
      "streams of the GPU share queues of the hardware: CUDA_DEVICE_MAX_CONNECTIONS should be 32",
      {{"it_is", set}});
  return {};
}

RunDevice::~RunDevice() {
  GiveUpFlags();
}

Status RunDevice::MakeRcache(uint64_t bytes) {
  if (!is_gpu() || rcache_ != nullptr) return {};
  if (server_room_ == nullptr)
    server_room_ = std::make_unique<device::Ballast>(cuda_.get(), kServerRoomBytes);
  TP_RETURN_IF_ERROR(server_room_->Take());
  TP_ASSIGN_OR_RETURN(rcache_, cuda_->CreateExportable(bytes, &rcache_fd_));
  return {};
}

void RunDevice::MakeRoom(bool server_comes) {
  if (server_comes) return server_room_->Free();
  Status taken = server_room_->Take();
  if (!taken.ok()) {
    // LibTorch may hold the memory that the server had before; it can release what it does not use.
    (void)CatchTorch([] { c10::getDeviceAllocator(c10::DeviceType::CUDA)->emptyCache(); });
    taken = server_room_->Take();
  }
  if (!taken.ok())
    LogWarn("the GPU has no room for another memserver, should this one end",
            {{"why", taken.what()}});
}

SessionDevice RunDevice::ForSession() {
  if (!is_gpu()) return {};
  SessionDevice session;
  session.device = cuda_.get();

  if (rcache_ != nullptr) {
    session.brought =
        client::BroughtMemory{.form = static_cast<uint32_t>(cuda_->export_form()),
                              .uuid = cuda_->uuid(),
                              .descriptor = rcache_fd_.get(),
                              .data = rcache_->data(),
                              .bytes = rcache_->bytes(),
                              .make_room = [this](bool server_comes) { MakeRoom(server_comes); }};
  }

  session.group = group_.get();
  session.native_group = device::CudaDevice::NativeOf(*group_);
  session.shared = shared_;
  session.copy_in = [this](uint64_t offset, std::span<const std::byte> bytes) {
    return CopyIn(offset, bytes);
  };
  session.take_flags = [this](const client::Attachment& attachment) {
    return TakeFlags(attachment);
  };
  session.give_up_flags = [this] { GiveUpFlags(); };
  return session;
}

Status RunDevice::TakeFlags(const client::Attachment& attachment) {
  if (attachment.flags == nullptr) {
    return Status(ErrorId::kCudaUnavailable,
                  "memserver gave this rank no flags to order copies by: its rCache is not that of "
                  "a GPU")
        .Fix("run on the host with --device cpu, or use a memserver that knows GPUs");
  }
  TP_ASSIGN_OR_RETURN(flags_, cuda_->Register(attachment.flags, attachment.flags_bytes));
  return {};
}

void RunDevice::GiveUpFlags() {
  if (flags_ == nullptr) return;
  Drain();
  flags_.reset();
}

// Work that waits for flags ends when they are reached or poisoned. After the deadline,
// unregistering the flags may block in the driver.
void RunDevice::Drain() {
  const int64_t until_ns = clock_->NowNs() + kDrainNs;
  for (device::Stream* stream : {recycle_.get(), group_.get(), compute_.get()}) {
    const device::Stream::Marker marker = stream->Record();
    while (!stream->Passed(marker) && stream->status().ok()) {
      if (clock_->NowNs() > until_ns)
        return LogWarn(
            "a stream of the GPU still waits for the server while its flags are given up", {});
      clock_->SleepNs(kPollNs);
    }
  }
}

CacheStreams RunDevice::streams() {
  return {.device = cuda_.get(), .compute = compute_.get(), .recycle = recycle_.get()};
}

ParameterMaker RunDevice::MakerOf(DType dtype) const {
  const at::TensorOptions options =
      at::TensorOptions().dtype(TorchType(dtype)).device(torch_device_);
  const bool host = !is_gpu();
  return [options, host](const ParameterNote& note) {
    const std::vector<int64_t> sizes(note.dims.begin(), note.dims.end());
    // The host only reserves this memory, which is never touched; a GPU's allocator would take it.
    // So the GPU tensor gets an address without memory.
    if (host) return at::empty(sizes, options);
    return at::for_blob(reinterpret_cast<void*>(uintptr_t{kPageBytes}), sizes)
        .options(options)
        .target_device(options.device())
        .make_tensor();
  };
}

at::Tensor RunDevice::Tokens(const std::vector<int64_t>& tokens, uint64_t sequences,
                             uint64_t length) const {
  const std::vector<int64_t> sizes{static_cast<int64_t>(sequences), static_cast<int64_t>(length)};
  const at::Tensor host =
      at::empty(sizes, at::TensorOptions().dtype(at::kLong).pinned_memory(is_gpu()));
  std::memcpy(host.mutable_data_ptr(), tokens.data(), tokens.size() * sizeof(int64_t));
  // The allocator of pinned memory keeps the source alive until the copy has completed.
  return is_gpu() ? host.to(torch_device_, /*non_blocking=*/true) : host;
}

Status RunDevice::CopyIn(uint64_t rcache_offset, std::span<const std::byte> bytes) {
  return CatchTorch([&] {
    const std::vector<int64_t> count{static_cast<int64_t>(bytes.size())};
    const at::TensorOptions options = at::TensorOptions().dtype(at::kByte);
    const at::Tensor here =
        at::for_blob(const_cast<std::byte*>(bytes.data()), count).options(options).make_tensor();
    const at::Tensor there = at::for_blob(rcache_->data() + rcache_offset, count)
                                 .options(options.device(torch_device_))
                                 .target_device(torch_device_)
                                 .make_tensor();

    there.copy_(here);  // synchronous: the source is not pinned
  });
}

DeviceTimer RunDevice::Timer() {
  if (!is_gpu()) return {};
  DeviceTimer timer;
  timer.begin_step = [this] { marks_.clear(); };
  timer.mark = [this] {
    marks_.emplace_back(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT)
        .record(current_->current_stream());
    return marks_.size() - 1;
  };

  timer.seconds_between = [this](size_t from, size_t to) {
    double seconds = 0;
    const Status measured = CatchTorch([&] {
      marks_[to].synchronize();
      seconds = marks_[from].elapsedTime(marks_[to]) * 1e-3;
    });
    return measured.ok() ? seconds : 0;
  };
  return timer;
}

void RunDevice::ResetPeak() {
  if (is_gpu())
    c10::getDeviceAllocator(c10::DeviceType::CUDA)->resetPeakStats(torch_device_.index());
}

Result<DeviceShares> RunDevice::Shares() const {
  TP_ASSIGN_OR_RETURN(const device::DeviceBytes bytes, cuda_->MemoryBytes());
  c10::CachingDeviceAllocator::DeviceStats stats;
  TP_RETURN_IF_ERROR(CatchTorch([&] {
    stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(torch_device_.index());
  }));

  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  DeviceShares shares;
  shares.total = bytes.total;
  shares.free = bytes.free;
  shares.allocated = static_cast<uint64_t>(stats.allocated_bytes[kAll].peak);
  shares.reserved = static_cast<uint64_t>(stats.reserved_bytes[kAll].current);
  return shares;
}

}  // namespace tidepool::trainer

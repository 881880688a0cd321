// The functions of libcuda.so.1 that device/cuda/cuda_driver.h names, on the host; and the levers
// for tests (fake_cuda.h).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/fakes/fake_cuda/driver_lock.h"
#include "tests/fakes/fake_cuda/late_copies.h"
#include "tests/fakes/fake_cuda/memory.h"
#include "tests/fakes/fake_cuda/objects.h"
#include "tests/fakes/fake_cuda/stream.h"
#include "tests/fakes/fake_cuda/world.h"

namespace tidepool::fake_cuda {
namespace {

using namespace device;  // the driver's types

constexpr const char* kVmmName = "fake-cuda-vmm";
constexpr const char* kIpcName = "fake-cuda-ipc";
constexpr uint64_t kUnitBytes = uint64_t{2} << 20;
constexpr int kMultiprocessors = 2, kBlocksEach = 2;  // few threads, each of which has much to do

// What is in the 64 bytes of a handle: whose descriptor it is. The other process finds it in /proc,
// as one of the same user may.
struct IpcContent {
  std::array<char, 8> mark = {'f', 'a', 'k', 'e', 'c', 'u', 'd', 'a'};
  int64_t pid = 0, fd = 0, inode = 0;
};
static_assert(sizeof(IpcContent) <= sizeof(CudaIpcHandle));

// A broken context still lets go of what it holds, though the calls answer the fault.
CudaCode Released(const Entry& entry, bool known) {
  return entry.ok() && !known ? kCudaInvalidValue : entry.code;
}

CudaCode Put(CUstream_st* stream, const Operation& operation, bool await) {
  const auto found = Objects::Get().Stream(stream);
  if (found == nullptr) return kCudaInvalidHandle;
  const uint64_t number = found->Put(operation);
  if (!await) return kCudaSuccess;
  found->Await(number);
  return World::Get().broken();
}

bool IsGpu(int device) {
  return device >= 0 && device < static_cast<int>(World::Get().settings().gpus.size());
}

}  // namespace
}  // namespace tidepool::fake_cuda

#define FAKE_ENTER(function, need)                        \
  const Entry entry = World::Get().Enter(function, need); \
  if (!entry.ok()) return entry.code

#pragma GCC visibility push(default)
extern "C" {

using namespace tidepool::fake_cuda;
using namespace tidepool::device;

CudaCode cuInit(unsigned) {
  FAKE_ENTER("cuInit", Need::kNothing);
  return World::Get().Init();
}

CudaCode cuGetErrorName(CudaCode code, const char** name) {
  static const std::map<CudaCode, const char*> names = {
      {0, "CUDA_SUCCESS"},
      {1, "CUDA_ERROR_INVALID_VALUE"},
      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {3, "CUDA_ERROR_NOT_INITIALIZED"},
      {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
      {100, "CUDA_ERROR_NO_DEVICE"},
      {101, "CUDA_ERROR_INVALID_DEVICE"},
      {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
      {226, "CUDA_ERROR_CONTAINED"},
      {400, "CUDA_ERROR_INVALID_HANDLE"},
      {500, "CUDA_ERROR_NOT_FOUND"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
      {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
      {801, "CUDA_ERROR_NOT_SUPPORTED"},
  };
  FAKE_ENTER("cuGetErrorName", Need::kNothing);
  const auto found = names.find(code);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? kCudaInvalidValue : kCudaSuccess;
}

CudaCode cuDeviceGetCount(int* count) {
  FAKE_ENTER("cuDeviceGetCount", Need::kInit);
  *count = static_cast<int>(World::Get().settings().gpus.size());
  return kCudaSuccess;
}

CudaCode cuDeviceGet(int* device, int ordinal) {
  FAKE_ENTER("cuDeviceGet", Need::kInit);
  if (!IsGpu(ordinal)) return kCudaInvalidDevice;
  *device = ordinal;
  return kCudaSuccess;
}

CudaCode cuDeviceGetName(char* name, int length, int device) {
  FAKE_ENTER("cuDeviceGetName", Need::kInit);
  if (!IsGpu(device)) return kCudaInvalidDevice;
  std::snprintf(name, static_cast<size_t>(length), "Fake GPU");
  return kCudaSuccess;
}

CudaCode cuDeviceGetUuid_v2(CudaUuid* uuid, int device) {
  FAKE_ENTER("cuDeviceGetUuid_v2", Need::kInit);
  if (!IsGpu(device)) return kCudaInvalidDevice;
  uuid->bytes.fill('\xfa');
  uuid->bytes.back() = static_cast<char>(World::Get().settings().gpus[static_cast<size_t>(device)]);
  return kCudaSuccess;
}

CudaCode cuDeviceGetPCIBusId(char* address, int length, int device) {
  FAKE_ENTER("cuDeviceGetPCIBusId", Need::kInit);
  if (!IsGpu(device)) return kCudaInvalidDevice;
  const int gpu = World::Get().settings().gpus[static_cast<size_t>(device)];
  std::snprintf(address, static_cast<size_t>(length), "0000:%02X:00.0",
                static_cast<unsigned>(0xFA - gpu));
  return kCudaSuccess;
}

CudaCode cuDeviceTotalMem_v2(size_t* bytes, int device) {
  FAKE_ENTER("cuDeviceTotalMem_v2", Need::kInit);
  if (!IsGpu(device)) return kCudaInvalidDevice;
  *bytes = World::Get().settings().bytes;
  return kCudaSuccess;
}

CudaCode cuDeviceGetAttribute(int* value, CudaAttribute attribute, int device) {
  FAKE_ENTER("cuDeviceGetAttribute", Need::kInit);
  if (!IsGpu(device)) return kCudaInvalidDevice;
  const Settings settings = World::Get().settings();
  switch (attribute) {
    case kCudaUnifiedAddressing:
    case kCudaHostRegisterSupported: *value = 1; return kCudaSuccess;
    case kCudaVmmSupported:
    case kCudaPosixHandleSupported: *value = settings.vmm; return kCudaSuccess;
    case kCudaMemOps64: *value = settings.memops; return kCudaSuccess;
    case kCudaIpcSupported: *value = settings.ipc; return kCudaSuccess;
    case kCudaMpsEnabled: *value = settings.mps; return kCudaSuccess;
    case kCudaMultiprocessors: *value = kMultiprocessors; return kCudaSuccess;
  }
  return kCudaInvalidValue;
}

CudaCode cuDevicePrimaryCtxRetain(CUctx_st** context, int device) {
  FAKE_ENTER("cuDevicePrimaryCtxRetain", Need::kInit);
  if (!IsGpu(device)) return kCudaInvalidDevice;
  DriverLock::Stall();
  *context = World::Get().Retain(device);
  return *context == nullptr ? kCudaOutOfMemory : kCudaSuccess;
}

CudaCode cuDevicePrimaryCtxRelease_v2(int device) {
  const Entry entry = World::Get().Enter("cuDevicePrimaryCtxRelease_v2", Need::kInit);
  if (!IsGpu(device)) return kCudaInvalidDevice;
  World::Get().Release(device);
  return entry.code;
}

CudaCode cuCtxSetCurrent(CUctx_st* context) {
  const Entry entry = World::Get().Enter("cuCtxSetCurrent", Need::kInit);
  if (context != nullptr && !World::Get().Holds(context)) return kCudaInvalidContext;
  if (entry.ok()) current_context = context;
  return entry.code;
}

CudaCode cuMemGetInfo_v2(size_t* free, size_t* total) {
  FAKE_ENTER("cuMemGetInfo_v2", Need::kContext);
  *total = World::Get().settings().bytes;
  *free = *total - World::Get().Taken(CurrentGpu());
  return kCudaSuccess;
}

CudaCode cuMemAlloc_v2(CudaAddress* address, size_t bytes) {
  FAKE_ENTER("cuMemAlloc_v2", Need::kContext);
  if (bytes == 0) return kCudaInvalidValue;
  auto backing = Backing::Create(CurrentGpu(), bytes, kIpcName);
  if (backing == nullptr) return kCudaOutOfMemory;
  *address = AddressSpace::Get().Place(std::move(backing), false);
  return *address == 0 ? kCudaOutOfMemory : kCudaSuccess;
}

CudaCode cuMemFree_v2(CudaAddress address) {
  const Entry entry = World::Get().Enter("cuMemFree_v2", Need::kContext);
  return Released(entry, AddressSpace::Get().Remove(address, false));
}

CudaCode cuMemGetAddressRange_v2(CudaAddress* begin, size_t* bytes, CudaAddress address) {
  FAKE_ENTER("cuMemGetAddressRange_v2", Need::kContext);
  const auto found = AddressSpace::Get().AllocationAt(address);
  if (!found) return kCudaInvalidValue;
  *begin = found->first;
  *bytes = found->second->bytes();
  return kCudaSuccess;
}

CudaCode cuIpcGetMemHandle(CudaIpcHandle* handle, CudaAddress address) {
  FAKE_ENTER("cuIpcGetMemHandle", Need::kContext);
  if (!World::Get().settings().ipc) return kCudaNotSupported;
  const auto found = AddressSpace::Get().AllocationAt(address);
  if (!found) return kCudaInvalidValue;
  struct stat file {};
  if (fstat(found->second->fd(), &file) != 0) return kCudaMapFailed;
  const IpcContent content{
      .pid = getpid(), .fd = found->second->fd(), .inode = static_cast<int64_t>(file.st_ino)};
  std::memcpy(handle->bytes.data(), &content, sizeof content);
  return kCudaSuccess;
}

CudaCode cuIpcOpenMemHandle_v2(CudaAddress* address, CudaIpcHandle handle, unsigned flags) {
  FAKE_ENTER("cuIpcOpenMemHandle_v2", Need::kContext);
  IpcContent content;
  std::memcpy(static_cast<void*>(&content), handle.bytes.data(), sizeof content);
  if (content.mark != IpcContent{}.mark || flags != kCudaIpcLazyPeerAccess)
    return kCudaInvalidValue;
  // As the driver: a process does not open what is its own.
  if (content.pid == getpid()) return kCudaInvalidContext;
  const std::string path =
      "/proc/" + std::to_string(content.pid) + "/fd/" + std::to_string(content.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat file {};
  const bool same =
      fd >= 0 && fstat(fd, &file) == 0 && static_cast<int64_t>(file.st_ino) == content.inode;
  auto backing = same ? Backing::Open(fd, kIpcName) : nullptr;
  if (fd >= 0) close(fd);
  if (backing == nullptr) return kCudaInvalidHandle;
  *address = AddressSpace::Get().Place(std::move(backing), true);
  return *address == 0 ? kCudaMapFailed : kCudaSuccess;
}

CudaCode cuIpcCloseMemHandle(CudaAddress address) {
  const Entry entry = World::Get().Enter("cuIpcCloseMemHandle", Need::kContext);
  return Released(entry, AddressSpace::Get().Remove(address, true));
}

CudaCode cuMemGetAllocationGranularity(size_t* unit, const CudaAllocationTerms* terms, int) {
  FAKE_ENTER("cuMemGetAllocationGranularity", Need::kInit);
  if (!IsGpu(terms->location.id)) return kCudaInvalidDevice;
  *unit = kUnitBytes;
  return kCudaSuccess;
}

CudaCode cuMemCreate(unsigned long long* handle, size_t bytes, const CudaAllocationTerms* terms,
                     unsigned long long flags) {
  FAKE_ENTER("cuMemCreate", Need::kInit);
  if (!World::Get().settings().vmm) return kCudaNotSupported;
  if (!IsGpu(terms->location.id)) return kCudaInvalidDevice;
  const bool known = terms->type == 1 && terms->location.type == 1 &&
                     terms->handle_types == kCudaPosixDescriptor && flags == 0;
  if (!known || bytes == 0 || bytes % kUnitBytes != 0) return kCudaInvalidValue;
  auto backing = Backing::Create(
      World::Get().settings().gpus[static_cast<size_t>(terms->location.id)], bytes, kVmmName);
  if (backing == nullptr) return kCudaOutOfMemory;
  *handle = Objects::Get().Add(std::move(backing));
  return kCudaSuccess;
}

CudaCode cuMemRelease(unsigned long long handle) {
  const Entry entry = World::Get().Enter("cuMemRelease", Need::kInit);
  std::shared_ptr<Backing> last;  // goes when the lock has
  const std::lock_guard lock(Objects::Get().mutex);
  const auto found = Objects::Get().allocations.find(handle);
  const bool known = found != Objects::Get().allocations.end();
  if (known) {
    last = std::move(found->second);
    Objects::Get().allocations.erase(found);
  }
  return Released(entry, known);
}

CudaCode cuMemAddressReserve(CudaAddress* address, size_t bytes, size_t, CudaAddress,
                             unsigned long long flags) {
  FAKE_ENTER("cuMemAddressReserve", Need::kInit);
  if (bytes == 0 || flags != 0 || bytes % kUnitBytes != 0) return kCudaInvalidValue;
  *address = AddressSpace::Get().Reserve(bytes);
  return *address == 0 ? kCudaOutOfMemory : kCudaSuccess;
}

CudaCode cuMemAddressFree(CudaAddress address, size_t bytes) {
  const Entry entry = World::Get().Enter("cuMemAddressFree", Need::kInit);
  return Released(entry, AddressSpace::Get().Unreserve(address, bytes));
}

CudaCode cuMemMap(CudaAddress address, size_t bytes, size_t offset, unsigned long long handle,
                  unsigned long long flags) {
  FAKE_ENTER("cuMemMap", Need::kInit);
  auto backing = Objects::Get().Allocation(handle);
  if (backing == nullptr || offset != 0 || flags != 0 || bytes % kUnitBytes != 0)
    return kCudaInvalidValue;
  return AddressSpace::Get().Map(address, bytes, std::move(backing)) ? kCudaSuccess
                                                                     : kCudaInvalidValue;
}

CudaCode cuMemUnmap(CudaAddress address, size_t bytes) {
  const Entry entry = World::Get().Enter("cuMemUnmap", Need::kInit);
  return Released(entry, AddressSpace::Get().Unmap(address, bytes));
}

CudaCode cuMemSetAccess(CudaAddress address, size_t bytes, const CudaAccess* access, size_t count) {
  FAKE_ENTER("cuMemSetAccess", Need::kInit);
  if (count != 1 || access->flags != 3 || !IsGpu(access->location.id)) return kCudaInvalidValue;
  return AddressSpace::Get().Allow(address, bytes) ? kCudaSuccess : kCudaInvalidValue;
}

CudaCode cuMemExportToShareableHandle(void* shareable, unsigned long long handle, int type,
                                      unsigned long long flags) {
  FAKE_ENTER("cuMemExportToShareableHandle", Need::kInit);
  const auto backing = Objects::Get().Allocation(handle);
  if (backing == nullptr || type != kCudaPosixDescriptor || flags != 0) return kCudaInvalidValue;
  const int fd = fcntl(backing->fd(), F_DUPFD, 0);
  if (fd < 0) return kCudaUnknown;
  std::memcpy(shareable, &fd, sizeof fd);
  return kCudaSuccess;
}

CudaCode cuMemImportFromShareableHandle(unsigned long long* handle, void* shareable, int type) {
  FAKE_ENTER("cuMemImportFromShareableHandle", Need::kInit);
  if (type != kCudaPosixDescriptor || !World::Get().settings().vmm) return kCudaNotSupported;
  auto backing = Backing::Open(static_cast<int>(reinterpret_cast<intptr_t>(shareable)), kVmmName);
  if (backing == nullptr) return kCudaInvalidValue;
  *handle = Objects::Get().Add(std::move(backing));
  return kCudaSuccess;
}

CudaCode cuMemHostRegister_v2(void* begin, size_t bytes, unsigned flags) {
  FAKE_ENTER("cuMemHostRegister_v2", Need::kContext);
  if (flags != (kCudaRegisterPortable | kCudaRegisterDeviceMap)) return kCudaInvalidValue;
  if (bytes > kUnitBytes) DriverLock::Stall();
  return AddressSpace::Get().Register(begin, bytes);
}

CudaCode cuMemHostUnregister(void* begin) {
  const Entry entry = World::Get().Enter("cuMemHostUnregister", Need::kContext);
  const CudaCode code = AddressSpace::Get().Unregister(begin);
  return entry.ok() ? code : entry.code;
}

CudaCode cuMemHostGetDevicePointer_v2(CudaAddress* address, void* begin, unsigned flags) {
  FAKE_ENTER("cuMemHostGetDevicePointer_v2", Need::kContext);
  *address = AddressSpace::Get().AliasOf(begin);
  return *address == 0 || flags != 0 ? kCudaInvalidValue : kCudaSuccess;
}

CudaCode cuPointerGetAttribute(void* value, int attribute, CudaAddress address) {
  FAKE_ENTER("cuPointerGetAttribute", Need::kInit);
  const auto target = AddressSpace::Get().Find(address, 1);
  if (!target || attribute != kCudaPointerMemoryType || (target->host && !target->registered))
    return kCudaInvalidValue;
  const unsigned type = target->host ? kCudaMemoryHost : kCudaMemoryDevice;
  std::memcpy(value, &type, sizeof type);
  return kCudaSuccess;
}

CudaCode cuStreamCreate(CUstream_st** stream, unsigned) {
  FAKE_ENTER("cuStreamCreate", Need::kContext);
  auto made = std::make_shared<FakeStream>(CurrentOrdinal());
  *stream = reinterpret_cast<CUstream_st*>(made.get());
  const std::lock_guard lock(Objects::Get().mutex);
  Objects::Get().streams[*stream] = std::move(made);
  return kCudaSuccess;
}

CudaCode cuStreamDestroy_v2(CUstream_st* stream) {
  const Entry entry = World::Get().Enter("cuStreamDestroy_v2", Need::kContext);
  const auto found = stream == nullptr ? nullptr : Objects::Get().Stream(stream);
  if (found == nullptr) return Released(entry, false);
  found->Close();
  const std::lock_guard lock(Objects::Get().mutex);
  Objects::Get().streams.erase(stream);
  return entry.code;
}

CudaCode cuStreamSynchronize(CUstream_st* stream) {
  FAKE_ENTER("cuStreamSynchronize", Need::kContext);
  const auto found = Objects::Get().Stream(stream);
  if (found == nullptr) return kCudaInvalidHandle;
  found->Await(found->last());
  return World::Get().broken();
}

CudaCode cuStreamWaitValue64_v2(CUstream_st* stream, CudaAddress flag, uint64_t value,
                                unsigned flags) {
  FAKE_ENTER("cuStreamWaitValue64_v2", Need::kContext);
  if (flags != kCudaWaitGeq || flag % 8 != 0 || !AddressSpace::Get().ReadFlag(flag))
    return kCudaInvalidValue;
  return Put(stream, {.kind = Operation::Kind::kWait, .dst = flag, .value = value}, false);
}

CudaCode cuStreamWriteValue64_v2(CUstream_st* stream, CudaAddress flag, uint64_t value,
                                 unsigned flags) {
  FAKE_ENTER("cuStreamWriteValue64_v2", Need::kContext);
  if (flags != kCudaWriteDefault || flag % 8 != 0 || !AddressSpace::Get().ReadFlag(flag))
    return kCudaInvalidValue;
  return Put(stream, {.kind = Operation::Kind::kWrite, .dst = flag, .value = value}, false);
}

CudaCode cuMemcpyAsync(CudaAddress dst, CudaAddress src, size_t bytes, CUstream_st* stream) {
  FAKE_ENTER("cuMemcpyAsync", Need::kContext);
  const auto to = AddressSpace::Get().Find(dst, bytes), from = AddressSpace::Get().Find(src, bytes);
  if (!to || !from) return kCudaInvalidValue;
  // With pageable memory at one end, and from host to host, the call may block until the stream has
  // come to it: so it does.
  const bool pageable = (to->host && !to->registered) || (from->host && !from->registered);
  const uint32_t late = to->host && to->registered && !from->host
                            ? LateCopies::Begin(to->data, from->data, bytes)
                            : 0;
  return Put(stream,
             {.kind = Operation::Kind::kCopy,
              .dst = dst,
              .src = src,
              .bytes = bytes,
              .pageable = pageable,
              .late = late},
             pageable || (to->host && from->host));
}

CudaCode cuMemsetD8Async(CudaAddress dst, unsigned char value, size_t bytes, CUstream_st* stream) {
  FAKE_ENTER("cuMemsetD8Async", Need::kContext);
  const auto to = AddressSpace::Get().Find(dst, bytes);
  if (!to || (to->host && !to->registered)) return kCudaInvalidValue;
  return Put(stream, {.kind = Operation::Kind::kFill, .dst = dst, .bytes = bytes, .value = value},
             false);
}

CudaCode cuEventCreate(CUevent_st** event, unsigned) {
  FAKE_ENTER("cuEventCreate", Need::kContext);
  auto made = std::make_shared<FakeEvent>();
  *event = reinterpret_cast<CUevent_st*>(made.get());
  const std::lock_guard lock(Objects::Get().mutex);
  Objects::Get().events[*event] = std::move(made);
  return kCudaSuccess;
}

CudaCode cuEventDestroy_v2(CUevent_st* event) {
  const Entry entry = World::Get().Enter("cuEventDestroy_v2", Need::kContext);
  const std::lock_guard lock(Objects::Get().mutex);
  return Released(entry, Objects::Get().events.erase(event) > 0);
}

CudaCode cuEventRecord(CUevent_st* event, CUstream_st* stream) {
  FAKE_ENTER("cuEventRecord", Need::kContext);
  const auto point = Objects::Get().Event(event);
  const auto in = Objects::Get().Stream(stream);
  if (point == nullptr || in == nullptr) return kCudaInvalidHandle;
  point->stream = in;
  point->number = in->last();
  return kCudaSuccess;
}

CudaCode cuStreamWaitEvent(CUstream_st* stream, CUevent_st* event, unsigned flags) {
  FAKE_ENTER("cuStreamWaitEvent", Need::kContext);
  const auto point = Objects::Get().Event(event);
  if (point == nullptr || flags != 0) return kCudaInvalidHandle;
  if (point->stream == nullptr) return kCudaSuccess;
  return Put(stream,
             {.kind = Operation::Kind::kAfter, .value = point->number, .other = point->stream},
             false);
}

CudaCode cuEventQuery(CUevent_st* event) {
  FAKE_ENTER("cuEventQuery", Need::kContext);
  const auto point = Objects::Get().Event(event);
  if (point == nullptr) return kCudaInvalidHandle;
  const bool done = point->stream == nullptr || point->stream->Done(point->number);
  const CudaCode broken = World::Get().broken();
  if (broken != kCudaSuccess) return broken;
  return done ? kCudaSuccess : kCudaNotReady;
}

CudaCode cuEventSynchronize(CUevent_st* event) {
  FAKE_ENTER("cuEventSynchronize", Need::kContext);
  const auto point = Objects::Get().Event(event);
  if (point == nullptr) return kCudaInvalidHandle;
  if (point->stream != nullptr) point->stream->Await(point->number);
  return World::Get().broken();
}

CudaCode cuModuleLoadData(CUmod_st** module, const void* image) {
  FAKE_ENTER("cuModuleLoadData", Need::kContext);
  if (image == nullptr) return kCudaInvalidValue;
  DriverLock::Stall();
  Objects::Get().AwaitStreamsOf(CurrentOrdinal());

  const std::lock_guard lock(Objects::Get().mutex);
  *module = reinterpret_cast<CUmod_st*>(Objects::Get().next);
  Objects::Get().modules.insert(Objects::Get().next++);
  return kCudaSuccess;
}

CudaCode cuModuleUnload(CUmod_st* module) {
  const Entry entry = World::Get().Enter("cuModuleUnload", Need::kContext);
  const std::lock_guard lock(Objects::Get().mutex);
  return Released(entry, Objects::Get().modules.erase(reinterpret_cast<uintptr_t>(module)) > 0);
}

CudaCode cuModuleGetFunction(CUfunc_st** function, CUmod_st* module, const char* name) {
  FAKE_ENTER("cuModuleGetFunction", Need::kContext);
  const std::lock_guard lock(Objects::Get().mutex);
  if (Objects::Get().modules.count(reinterpret_cast<uintptr_t>(module)) == 0)
    return kCudaInvalidHandle;
  const FakeKernel* const kernel = KernelNamed(name);
  *function = reinterpret_cast<CUfunc_st*>(const_cast<FakeKernel*>(kernel));
  return kernel == nullptr ? kCudaNotFound : kCudaSuccess;
}

CudaCode cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunc_st* function, int threads,
                                                     size_t shared) {
  FAKE_ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor", Need::kContext);
  const auto* const kernel = reinterpret_cast<const FakeKernel*>(function);
  if (kernel == nullptr || threads != static_cast<int>(kernel->threads) || shared != 0)
    return kCudaInvalidValue;
  *blocks = kBlocksEach;
  return kCudaSuccess;
}

CudaCode cuLaunchKernelEx(const CudaLaunch* launch, CUfunc_st* function, void** parameters,
                          void** extra) {
  FAKE_ENTER("cuLaunchKernelEx", Need::kContext);
  const auto* const kernel = reinterpret_cast<const FakeKernel*>(function);
  const auto [blocks, blocks_y, blocks_z] = launch->blocks;
  if (kernel == nullptr || blocks == 0 || blocks > kMultiprocessors * kBlocksEach ||
      blocks_y != 1 || blocks_z != 1 || launch->threads != std::array{kernel->threads, 1u, 1u} ||
      launch->shared_bytes != 0 || launch->attributes_count != 0 || parameters == nullptr ||
      extra != nullptr) {
    return kCudaInvalidValue;
  }
  const auto* const block = static_cast<const std::byte*>(parameters[0]);
  return Put(launch->stream,
             {.kind = Operation::Kind::kKernel,
              .value = uint64_t{blocks} * kernel->threads,
              .kernel = kernel,
              .arguments = {block, block + kernel->argument_bytes}},
             false);
}

// The levers.
void fake_cuda_reset() {
  World::Get().Reset();
}
void fake_cuda_fail(const char* function, uint64_t k, int code) {
  World::Get().FailAt(function, k, code);
}
uint64_t fake_cuda_calls(const char* function) {
  return World::Get().Calls(function);
}
uint64_t fake_cuda_live() {
  return World::Get().contexts() + AddressSpace::Get().live() + Objects::Get().live();
}
const char* fake_cuda_max_connections() {
  static std::string text;
  text = World::Get().max_connections();
  return text.c_str();
}

}  // extern "C"
#pragma GCC visibility pop

// Every function of the table is here, and takes what the table says.
#define FAKE_COMPARE(member, symbol, ...) \
  static_assert(std::is_same_v<decltype(&symbol), tidepool::device::CudaCode (*)(__VA_ARGS__)>);
namespace tidepool::device {
TIDEPOOL_CUDA_CALLS(FAKE_COMPARE)
}  // namespace tidepool::device

#include "device/cuda/cuda_driver.h"

#if TIDEPOOL_HAS_CUDA
#include <cuda.h>
#endif
#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <type_traits>

#include "base/units.h"

namespace tidepool::device {
namespace {

#if TIDEPOOL_HAS_CUDA
// Compares the declarations of the header with those of cuda.h: same number of parameters, each
// passed in the same way.
template <typename Mine, typename Theirs>
constexpr bool kSamePassing =
    sizeof(Mine) == sizeof(Theirs) && std::is_pointer_v<Mine> ==
                                          std::is_pointer_v<Theirs>&& std::is_class_v<Mine> ==
                                          std::is_class_v<Theirs>;
template <typename Mine, typename Theirs>
constexpr bool kSameCall = false;
template <typename... Mine, typename... Theirs>
requires(sizeof...(Mine) ==
         sizeof...(Theirs)) constexpr bool kSameCall<CudaCall<Mine...>, CUresult(Theirs...)> =
    (kSamePassing<Mine, Theirs> && ...);
#define TIDEPOOL_CUDA_COMPARE(member, symbol, ...) \
  static_assert(kSameCall<CudaCall<__VA_ARGS__>, decltype(::symbol)>, #symbol);
TIDEPOOL_CUDA_CALLS(TIDEPOOL_CUDA_COMPARE)
#undef TIDEPOOL_CUDA_COMPARE

static_assert(kCudaInvalidValue == CUDA_ERROR_INVALID_VALUE &&
              kCudaOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kCudaDeviceUnavailable == CUDA_ERROR_DEVICE_UNAVAILABLE &&
              kCudaNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kCudaInvalidDevice == CUDA_ERROR_INVALID_DEVICE &&
              kCudaNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCudaNotFound == CUDA_ERROR_NOT_FOUND &&
              kCudaMultiprocessors == int{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT});
static_assert(kCudaInvalidContext == CUDA_ERROR_INVALID_CONTEXT &&
              kCudaMapFailed == CUDA_ERROR_MAP_FAILED);
static_assert(kCudaInvalidHandle == CUDA_ERROR_INVALID_HANDLE &&
              kCudaNotPermitted == CUDA_ERROR_NOT_PERMITTED);
static_assert(kCudaNotSupported == CUDA_ERROR_NOT_SUPPORTED && kCudaUnknown == CUDA_ERROR_UNKNOWN);
static_assert(kCudaUnifiedAddressing == int{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING});
static_assert(kCudaHostRegisterSupported == int{CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED});
static_assert(kCudaVmmSupported == int{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED});
static_assert(kCudaPosixHandleSupported ==
              int{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED});
static_assert(kCudaMemOps64 == int{CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS});
static_assert(kCudaIpcSupported == int{CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED});
#if CUDA_VERSION >= 12050
static_assert(kCudaMpsEnabled == int{CU_DEVICE_ATTRIBUTE_MPS_ENABLED});
#endif
static_assert(sizeof(CudaUuid) == sizeof(CUuuid) &&
              sizeof(CudaIpcHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(CudaAllocationTerms) == sizeof(CUmemAllocationProp) &&
              sizeof(CudaAccess) == sizeof(CUmemAccessDesc));
static_assert(offsetof(CudaAllocationTerms, handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(CudaAllocationTerms, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(CudaAllocationTerms, compression) ==
              offsetof(CUmemAllocationProp, allocFlags));
static_assert(offsetof(CudaLocation, id) == offsetof(CUmemLocation, id) &&
              offsetof(CudaAccess, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(CudaLocation{}.type == CU_MEM_LOCATION_TYPE_DEVICE &&
              CudaAllocationTerms{}.type == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(CudaAllocationTerms{}.handle_types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kCudaPosixDescriptor == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(sizeof(CudaLaunch) == sizeof(CUlaunchConfig) &&
              offsetof(CudaLaunch, threads) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(CudaLaunch, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(CudaLaunch, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(CudaLaunch, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(CudaLaunch, attributes_count) == offsetof(CUlaunchConfig, numAttrs));
static_assert(CudaAccess{}.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
              kCudaGranularityMinimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(kCudaStreamNonBlocking == CU_STREAM_NON_BLOCKING &&
              kCudaEventBlockingSync == CU_EVENT_BLOCKING_SYNC);
static_assert(kCudaEventDisableTiming == CU_EVENT_DISABLE_TIMING &&
              kCudaIpcLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(kCudaRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE &&
              kCudaRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kCudaWaitGeq == CU_STREAM_WAIT_VALUE_GEQ &&
              kCudaWriteDefault == CU_STREAM_WRITE_VALUE_DEFAULT);
static_assert(kCudaPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kCudaMemoryHost == CU_MEMORYTYPE_HOST && kCudaMemoryDevice == CU_MEMORYTYPE_DEVICE);
#endif

constexpr const char* kLibrary = "libcuda.so.1";

Status Unavailable(const std::string& what) {
  return Status(ErrorId::kCudaUnavailable, what);
}

}  // namespace

Status CudaDriver::Find(void* library) {
#define TIDEPOOL_CUDA_FIND(member, symbol, ...)                                           \
  member.function = reinterpret_cast<decltype(member.function)>(dlsym(library, #symbol)); \
  if (member.function == nullptr) {                                                       \
    return Unavailable(std::string(kLibrary) + " has no " #symbol)                        \
        .Fix("install a driver of CUDA 12 or later");                                     \
  }
  TIDEPOOL_CUDA_CALLS(TIDEPOOL_CUDA_FIND)
#undef TIDEPOOL_CUDA_FIND
  return {};
}

Result<const CudaDriver*> CudaDriver::Load() {
  static std::mutex mutex;
  // The library stays loaded until the process ends, because its threads do.
  static std::unique_ptr<const CudaDriver> loaded;
  const std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded.get();

  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Unavailable("the CUDA driver is not on this machine").Why(dlerror());

  CudaDriver driver;
  TP_RETURN_IF_ERROR(driver.Find(library));
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  if (const CudaCode code = driver.init(0); code != kCudaSuccess) {
    return Unavailable("the CUDA driver does not start").Why(driver.Text("cuInit", code));
  }

  loaded = std::make_unique<const CudaDriver>(driver);
  return loaded.get();
}

std::string CudaDriver::Text(const char* call, CudaCode code) const {
  const char* known = nullptr;
  const bool named = error_name(code, &known) == kCudaSuccess && known != nullptr;
  return std::string(call) + ": " + (named ? known : "unknown error") + " (" +
         std::to_string(code) + ")";
}

Status CudaDriver::Error(std::string_view doing, const char* call, CudaCode code) const {
  // When host memory is being registered, it is not the GPU's memory that is short.
  if (code != kCudaOutOfMemory || call == host_register.name)
    return Status(ErrorId::kCudaFailed, std::string(doing) + " failed").Why(Text(call, code));
  size_t free = 0, total = 0;
  const bool known = memory_info(&free, &total) == kCudaSuccess;
  const std::string left =
      known ? ": " + FormatBytes(free) + " of " + FormatBytes(total) + " are free" : "";
  return Status(ErrorId::kDeviceMemoryShort,
                std::string(doing) + " failed, the GPU's memory does not suffice" + left)
      .Why(Text(call, code));
}

}  // namespace tidepool::device

// CudaDriver: the CUDA driver functions that Tidepool calls, loaded from libcuda.so.1 when a GPU is
// first used.
//
// Any thread. Nothing is linked: programs start on machines without CUDA, and a build without the
// toolkit is no different. The declarations below are the driver's own, in plain types; if the
// toolkit is present, cuda_driver.cpp compares each with cuda.h at compile time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace tidepool::device {

using CudaCode = int;                    // CUresult; 0 is success
using CudaAddress = unsigned long long;  // CUdeviceptr

// The codes that are distinguished; all others are only reported.
inline constexpr CudaCode kCudaSuccess = 0, kCudaInvalidValue = 1, kCudaOutOfMemory = 2,
                          kCudaDeviceUnavailable = 46, kCudaNoDevice = 100,
                          kCudaInvalidDevice = 101, kCudaInvalidContext = 201, kCudaMapFailed = 205,
                          kCudaInvalidHandle = 400, kCudaNotFound = 500, kCudaNotReady = 600,
                          kCudaNotPermitted = 800, kCudaNotSupported = 801, kCudaUnknown = 999;

// The CUdevice_attribute values in use.
enum CudaAttribute : int {
  kCudaMultiprocessors = 16,
  kCudaUnifiedAddressing = 41,
  kCudaHostRegisterSupported = 99,
  kCudaVmmSupported = 102,
  kCudaPosixHandleSupported = 103,
  kCudaMemOps64 = 122,
  kCudaIpcSupported = 125,
  kCudaMpsEnabled = 133,
};

// The plain structures of calls, in the driver's own layout.
struct CudaUuid {
  std::array<char, 16> bytes = {};
};
struct CudaIpcHandle {
  std::array<char, 64> bytes = {};
};
struct CudaLocation {
  int type = 1;  // a GPU
  int id = 0;    // its ordinal
};
struct CudaAllocationTerms {  // CUmemAllocationProp
  int type = 1;               // pinned
  int handle_types = 1;       // exported as a POSIX file descriptor
  CudaLocation location = {};
  void* windows = nullptr;
  unsigned char compression = 0, rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
struct CudaLaunch {  // CUlaunchConfig
  std::array<unsigned, 3> blocks = {1, 1, 1}, threads = {1, 1, 1};
  unsigned shared_bytes = 0;
  CUstream_st* stream = nullptr;
  void* attributes = nullptr;
  unsigned attributes_count = 0;
};
struct CudaAccess {  // CUmemAccessDesc
  CudaLocation location = {};
  int flags = 3;  // read and write
};

inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventBlockingSync = 1, kCudaEventDisableTiming = 2;
inline constexpr unsigned kCudaRegisterPortable = 1, kCudaRegisterDeviceMap = 2;
inline constexpr unsigned kCudaIpcLazyPeerAccess = 1;
inline constexpr unsigned kCudaWaitGeq = 0, kCudaWriteDefault = 0;
inline constexpr int kCudaPosixDescriptor = 1;
inline constexpr int kCudaGranularityMinimum = 0;
inline constexpr int kCudaPointerMemoryType = 2;
inline constexpr unsigned kCudaMemoryHost = 1, kCudaMemoryDevice = 2;

// X(member, symbol of the library, types of its parameters...)
#define TIDEPOOL_CUDA_CALLS(X)                                                                    \
  X(init, cuInit, unsigned)                                                                       \
  X(error_name, cuGetErrorName, CudaCode, const char**)                                           \
  X(device_count, cuDeviceGetCount, int*)                                                         \
  X(device_get, cuDeviceGet, int*, int)                                                           \
  X(device_name, cuDeviceGetName, char*, int, int)                                                \
  X(device_uuid, cuDeviceGetUuid_v2, CudaUuid*, int)                                              \
  X(device_pci, cuDeviceGetPCIBusId, char*, int, int)                                             \
  X(device_total, cuDeviceTotalMem_v2, size_t*, int)                                              \
  X(device_attribute, cuDeviceGetAttribute, int*, CudaAttribute, int)                             \
  X(context_retain, cuDevicePrimaryCtxRetain, CUctx_st**, int)                                    \
  X(context_release, cuDevicePrimaryCtxRelease_v2, int)                                           \
  X(context_set, cuCtxSetCurrent, CUctx_st*)                                                      \
  X(memory_info, cuMemGetInfo_v2, size_t*, size_t*)                                               \
  X(memory_alloc, cuMemAlloc_v2, CudaAddress*, size_t)                                            \
  X(memory_free, cuMemFree_v2, CudaAddress)                                                       \
  X(memory_range, cuMemGetAddressRange_v2, CudaAddress*, size_t*, CudaAddress)                    \
  X(ipc_get, cuIpcGetMemHandle, CudaIpcHandle*, CudaAddress)                                      \
  X(ipc_open, cuIpcOpenMemHandle_v2, CudaAddress*, CudaIpcHandle, unsigned)                       \
  X(ipc_close, cuIpcCloseMemHandle, CudaAddress)                                                  \
  X(vmm_granularity, cuMemGetAllocationGranularity, size_t*, const CudaAllocationTerms*, int)     \
  X(vmm_create, cuMemCreate, unsigned long long*, size_t, const CudaAllocationTerms*,             \
    unsigned long long)                                                                           \
  X(vmm_release, cuMemRelease, unsigned long long)                                                \
  X(vmm_reserve, cuMemAddressReserve, CudaAddress*, size_t, size_t, CudaAddress,                  \
    unsigned long long)                                                                           \
  X(vmm_unreserve, cuMemAddressFree, CudaAddress, size_t)                                         \
  X(vmm_map, cuMemMap, CudaAddress, size_t, size_t, unsigned long long, unsigned long long)       \
  X(vmm_unmap, cuMemUnmap, CudaAddress, size_t)                                                   \
  X(vmm_access, cuMemSetAccess, CudaAddress, size_t, const CudaAccess*, size_t)                   \
  X(vmm_export, cuMemExportToShareableHandle, void*, unsigned long long, int, unsigned long long) \
  X(vmm_import, cuMemImportFromShareableHandle, unsigned long long*, void*, int)                  \
  X(host_register, cuMemHostRegister_v2, void*, size_t, unsigned)                                 \
  X(host_unregister, cuMemHostUnregister, void*)                                                  \
  X(host_address, cuMemHostGetDevicePointer_v2, CudaAddress*, void*, unsigned)                    \
  X(pointer_attribute, cuPointerGetAttribute, void*, int, CudaAddress)                            \
  X(stream_create, cuStreamCreate, CUstream_st**, unsigned)                                       \
  X(stream_destroy, cuStreamDestroy_v2, CUstream_st*)                                             \
  X(stream_synchronize, cuStreamSynchronize, CUstream_st*)                                        \
  X(stream_wait, cuStreamWaitValue64_v2, CUstream_st*, CudaAddress, uint64_t, unsigned)           \
  X(stream_write, cuStreamWriteValue64_v2, CUstream_st*, CudaAddress, uint64_t, unsigned)         \
  X(copy, cuMemcpyAsync, CudaAddress, CudaAddress, size_t, CUstream_st*)                          \
  X(fill, cuMemsetD8Async, CudaAddress, unsigned char, size_t, CUstream_st*)                      \
  X(event_create, cuEventCreate, CUevent_st**, unsigned)                                          \
  X(event_destroy, cuEventDestroy_v2, CUevent_st*)                                                \
  X(event_record, cuEventRecord, CUevent_st*, CUstream_st*)                                       \
  X(stream_wait_event, cuStreamWaitEvent, CUstream_st*, CUevent_st*, unsigned)                    \
  X(event_query, cuEventQuery, CUevent_st*)                                                       \
  X(event_synchronize, cuEventSynchronize, CUevent_st*)                                           \
  X(module_load, cuModuleLoadData, CUmod_st**, const void*)                                       \
  X(module_function, cuModuleGetFunction, CUfunc_st**, CUmod_st*, const char*)                    \
  X(module_unload, cuModuleUnload, CUmod_st*)                                                     \
  X(function_blocks, cuOccupancyMaxActiveBlocksPerMultiprocessor, int*, CUfunc_st*, int, size_t)  \
  X(launch, cuLaunchKernelEx, const CudaLaunch*, CUfunc_st*, void**, void**)

// One function of the driver: callable; knows its name for errors.
template <typename... Parameters>
struct CudaCall {
  const char* name = "";
  CudaCode (*function)(Parameters...) = nullptr;
  CudaCode operator()(Parameters... arguments) const { return function(arguments...); }
};

class CudaDriver {
 public:
  // Loads the library and starts the driver, once per process; after an error the next call
  // retries. Sets CUDA_DEVICE_MAX_CONNECTIONS to 32 (one hardware queue per stream, so that none
  // waits behind another one's wait) unless the user set it. Errors: kCudaUnavailable (no library,
  // a function missing, or the error of cuInit).
  static Result<const CudaDriver*> Load();

  // The status of a call, ok on success. kDeviceMemoryShort with free and total bytes if the GPU
  // has no memory left, else kCudaFailed; `doing` begins the sentence: "registering 4 MiB of host
  // memory".
  template <typename... Parameters, typename... Arguments>
  Status Try(std::string_view doing, const CudaCall<Parameters...>& call,
             Arguments... arguments) const {
    const CudaCode code = call(arguments...);
    return code == kCudaSuccess ? Status() : Error(doing, call.name, code);
  }
  Status Error(std::string_view doing, const char* call, CudaCode code) const;
  // "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)".
  std::string Text(const char* call, CudaCode code) const;

#define TIDEPOOL_CUDA_MEMBER(member, symbol, ...) CudaCall<__VA_ARGS__> member = {#symbol, nullptr};
  TIDEPOOL_CUDA_CALLS(TIDEPOOL_CUDA_MEMBER)
#undef TIDEPOOL_CUDA_MEMBER

 private:
  Status Find(void* library);
};

}  // namespace tidepool::device

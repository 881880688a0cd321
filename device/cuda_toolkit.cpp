#include "device/cuda_toolkit.h"

#if TIDEPOOL_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace tidepool::device {

#if TIDEPOOL_HAS_CUDA

CudaToolkit ReadCudaToolkit() {
  CudaToolkit toolkit;
  toolkit.linked = true;
  cudaRuntimeGetVersion(&toolkit.runtime_version);
  const cudaError_t error = cudaGetDeviceCount(&toolkit.devices);
  if (error != cudaSuccess) {
    toolkit.devices = 0;
    toolkit.why_none = cudaGetErrorString(error);
  } else if (toolkit.devices == 0) {
    toolkit.why_none = "the driver shows no GPU";
  }
  return toolkit;
}

#else

CudaToolkit ReadCudaToolkit() {
  CudaToolkit toolkit;
  toolkit.why_none = "built without the CUDA toolkit";
  return toolkit;
}

#endif

}  // namespace tidepool::device

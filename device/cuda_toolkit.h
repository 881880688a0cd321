// CudaToolkit: what CUDA this build was linked with, and whether this machine can use it.
//
// Any thread. Asking for the devices starts the CUDA driver once per process where there is one (milliseconds; up to a second with GPUs).
#pragma once

#include <string>

namespace tidepool::device {

struct CudaToolkit {
  bool linked = false;      // false: built without the toolkit, and nothing below is known
  int runtime_version = 0;  // 13000 is CUDA 13.0
  int devices = 0;          // GPUs that this process may use
  std::string why_none;     // when devices is 0: what the runtime answered
};

CudaToolkit ReadCudaToolkit();

}  // namespace tidepool::device

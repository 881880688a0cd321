#include "device/cuda/cuda_kernels.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"

namespace tidepool::device {
namespace {

// CUresult values with which a driver rejects code: not an image, none for this GPU, PTX that is
// invalid or too new, a missing or disabled PTX compiler, no such function.
constexpr CudaCode kNotTaken[] = {200, 209, 218, 221, 222, 223, kCudaNotFound};

}  // namespace

Status CudaKernels::Error(const Kernel& kernel, const char* call, CudaCode code) const {
  const std::string name = kernel.name;
  if (std::find(std::begin(kNotTaken), std::end(kNotTaken), code) == std::end(kNotTaken))
    return cuda_.Error("loading " + name, call, code);
  const std::string without = kernel.image->without;
  Status refused = Status(ErrorId::kCudaUnavailable, name + " does not run on this GPU");
  if (!without.empty()) return std::move(refused).Why(without);
  return std::move(refused).Why(cuda_.Text(call, code)).Fix("install a newer driver");
}

Result<CUmod_st*> CudaKernels::ModuleOf(const Kernel& kernel) {
  const auto found = modules_.find(kernel.image);
  if (found != modules_.end()) return found->second;
  CUmod_st* loaded = nullptr;
  const CudaCode code = cuda_.module_load(&loaded, kernel.image->data);
  if (code != kCudaSuccess) return Error(kernel, cuda_.module_load.name, code);
  modules_[kernel.image] = loaded;
  return loaded;
}

Result<CudaKernels::Ready> CudaKernels::Find(const Kernel& kernel, int device) {
  const std::lock_guard lock(mutex_);
  const auto found = ready_.find(&kernel);
  if (found != ready_.end()) return found->second;

  TP_ASSIGN_OR_RETURN(CUmod_st* const module, ModuleOf(kernel));
  Ready ready;
  if (const CudaCode code = cuda_.module_function(&ready.function, module, kernel.name);
      code != kCudaSuccess) {
    return Error(kernel, cuda_.module_function.name, code);
  }

  int multiprocessors = 0, each = 0;
  TP_RETURN_IF_ERROR(cuda_.Try("asking how large a GPU is", cuda_.device_attribute,
                               &multiprocessors, kCudaMultiprocessors, device));
  const auto threads = static_cast<int>(kernel.threads);
  const CudaCode code = cuda_.function_blocks(&each, ready.function, threads, size_t{0});
  if (code != kCudaSuccess) return Error(kernel, cuda_.function_blocks.name, code);
  ready.blocks = static_cast<uint64_t>(std::max(multiprocessors, 1)) *
                 static_cast<uint64_t>(std::max(each, 1));

  ready_[&kernel] = ready;
  return ready;
}

bool CudaKernels::empty() const {
  const std::lock_guard lock(mutex_);
  return modules_.empty();
}

void CudaKernels::Unload() {
  const std::lock_guard lock(mutex_);
  for (const auto& [image, module] : modules_) (void)cuda_.module_unload(module);
  modules_.clear();
  ready_.clear();
}

}  // namespace tidepool::device

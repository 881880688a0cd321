#include "optim/adam_kernel.h"

#include <cuda_runtime.h>

#include <type_traits>

#include "optim/adam_share.h"
#include "optim/rules.h"

namespace tidepool::optim {
namespace {

constexpr unsigned kThreads = 256;  // of a block

template <typename Share, typename Factors, typename Planes>
__global__ void __launch_bounds__(kThreads) AdamKernel(Factors factors, float scale, Planes planes) {
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  Share::Run(factors, scale, planes, static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x, threads);
}

// As many blocks as the GPU holds at once, so that all share the work evenly; fewer for short spans.
template <typename Rule>
cudaError_t Launch(const StepFactors& factors, const UpdateSpan& span, int multiprocessors, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  WithGradient<Rule>(span, [&](auto share, const auto& planes) {
    const auto kernel = AdamKernel<decltype(share), typename Rule::Factors, std::decay_t<decltype(planes)>>;
    int each = 0;
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kThreads, 0);
    if (error != cudaSuccess) return;
    const uint64_t wanted = (span.count + kThreads * kVectorElements - 1) / (kThreads * kVectorElements);
    const uint64_t most = static_cast<uint64_t>(multiprocessors) * static_cast<uint64_t>(each);
    const auto blocks = static_cast<unsigned>(wanted < most ? wanted : most);
    kernel<<<blocks, kThreads, 0, stream>>>(FactorsOf<Rule>(factors), factors.gradient_scale, planes);
    error = cudaGetLastError();
  });
  return error;
}

KernelAnswer AnswerOf(cudaError_t error) {
  return {static_cast<int>(error), cudaGetErrorName(error), cudaGetErrorString(error)};
}

}  // namespace

KernelAnswer EnqueueAdam(const StepFactors& factors, const UpdateSpan& span, void* stream) {
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return AnswerOf(error);
  const auto queue = static_cast<cudaStream_t>(stream);
  return AnswerOf(factors.rule == 0 ? Launch<AdamRule<true>>(factors, span, multiprocessors, queue)
                                    : Launch<AdamRule<false>>(factors, span, multiprocessors, queue));
}

}  // namespace tidepool::optim

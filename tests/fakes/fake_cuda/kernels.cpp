#include "tests/fakes/fake_cuda/kernels.h"

#include <cstring>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "optim/adam_share.h"
#include "optim/kernels/float_mode.h"
#include "tests/fakes/fake_cuda/compute_token.h"
#include "tests/fakes/fake_cuda/memory.h"

namespace tidepool::fake_cuda {
namespace {

// The plane's place for the CPU; null when a GPU does not reach all of it. `kept` keeps it there.
template <typename T>
T* Reach(T* plane, uint64_t count, std::vector<Target>* kept) {
  const auto found =
      AddressSpace::Get().Find(reinterpret_cast<CudaAddress>(plane), count * sizeof(T));
  if (!found || (found->host && !found->registered)) return nullptr;
  kept->push_back(*found);
  return reinterpret_cast<T*>(found->data);
}

template <typename Share>
bool RunAdam(const std::byte* block, uint64_t threads) {
  optim::AdamArguments<Share> arguments;
  std::memcpy(&arguments, block, sizeof arguments);
  auto& planes = arguments.planes;
  const std::shared_lock uses(AddressSpace::Get().uses());
  const bool copies = planes.param16 != nullptr;
  std::vector<Target> kept;
  // What is read lies in the same allocation, as far away for the CPU as for the GPU.
  const float* const read = Reach(planes.master + planes.from, planes.count, &kept);
  const bool reads = Reach(planes.momentum + planes.from, planes.count, &kept) != nullptr &&
                     Reach(planes.variance + planes.from, planes.count, &kept) != nullptr;
  planes.master = Reach(planes.master, planes.count, &kept);
  planes.momentum = Reach(planes.momentum, planes.count, &kept);
  planes.variance = Reach(planes.variance, planes.count, &kept);
  planes.gradient = Reach(planes.gradient, planes.count, &kept);
  if (copies) planes.param16 = Reach(planes.param16, planes.count, &kept);
  if (planes.master == nullptr || planes.momentum == nullptr || planes.variance == nullptr ||
      planes.gradient == nullptr || copies != (planes.param16 != nullptr) || !reads ||
      read != planes.master + planes.from) {
    return false;
  }
  const optim::FlushDenormals flush;
  for (uint64_t thread = 0; thread < threads; ++thread) optim::Run(arguments, thread, threads);
  return true;
}

}  // namespace

const FakeKernel* KernelNamed(const std::string& name) {
  using namespace optim;  // the forms' types
#define TIDEPOOL_FAKE_ADAM(kernel_name, ...)                                  \
  {#kernel_name, sizeof(AdamArguments<AdamShare<__VA_ARGS__>>), kAdamThreads, \
   RunAdam<AdamShare<__VA_ARGS__>>},
  static constexpr FakeKernel kKernels[] = {TIDEPOOL_ADAM_FORMS(TIDEPOOL_FAKE_ADAM)};
#undef TIDEPOOL_FAKE_ADAM
  for (const FakeKernel& kernel : kKernels) {
    if (name == kernel.name) return &kernel;
  }
  return name == LoadKernel().name ? &LoadKernel() : nullptr;
}

}  // namespace tidepool::fake_cuda

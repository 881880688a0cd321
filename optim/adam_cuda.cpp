#include "optim/adam_cuda.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/check.h"
#include "optim/adam_kernel.h"
#include "optim/rules.h"

namespace tidepool::optim {
namespace {

// The kernel knows its two rules by their places in the table.
template <typename First, typename Second, typename... Rest>
constexpr bool AdamComesFirst(RuleList<First, Second, Rest...> /*list*/) {
  return __is_same(First, AdamRule<true>) && __is_same(Second, AdamRule<false>);
}
static_assert(AdamComesFirst(AllRules()));

// cudaError_t values that say that there is nothing to launch on: a driver too old, none of use, no device, no driver library.
constexpr int kNothingThere[] = {kNoKernel, 3, 34, 35, 36, 100, 101, 803, 804};

}  // namespace

const char* WhyNotOnGpu(const StepFactors& factors, const UpdateSpan& span) {
  if (factors.rule > 1) return "the kernel knows Adam and AdamW only";
  if (span.states != StateForm::kF32) return "the kernel knows fp32 states only";
  if (span.undo.progress != nullptr) return "the kernel opens no undo tiles: states on a GPU do not outlive their process";
  if (span.count == 0) return nullptr;
  if (span.master == nullptr || span.momentum == nullptr || span.variance == nullptr || span.gradient == nullptr)
    return "a plane is missing";
  if (span.param16 != nullptr && span.param16_dtype == DType::kF32) return "the 16-bit copy has an fp32 type";
  if (span.gradient_dtype == DType::kF32) return nullptr;
  if (span.param16 == nullptr || span.param16_dtype != span.gradient_dtype) return "16-bit gradients come with a copy of the same type";
  return nullptr;
}

Status LaunchAdam(const StepFactors& factors, const UpdateSpan& span, void* stream) {
  const char* const objection = WhyNotOnGpu(factors, span);
  TP_CHECK(objection == nullptr, "an update that the GPU's kernel does not do");
  if (span.count == 0) return {};
  const KernelAnswer answer = EnqueueAdam(factors, span, stream);
  if (answer.code == 0) return {};
  const std::string what =
      std::string("the Adam kernel was not launched: ") + answer.name + " (" + std::to_string(answer.code) + "): " + answer.text;
  const bool nothing = std::find(std::begin(kNothingThere), std::end(kNothingThere), answer.code) != std::end(kNothingThere);
  return Status(nothing ? ErrorId::kCudaUnavailable : ErrorId::kCudaFailed, what);
}

}  // namespace tidepool::optim

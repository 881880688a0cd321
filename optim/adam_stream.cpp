#include "optim/adam_stream.h"

#include <cstring>

#include "base/check.h"
#include "optim/adam_image.h"
#include "optim/adam_share.h"
#include "optim/kernels/float_mode.h"
#include "optim/rules.h"

namespace tidepool::optim {
namespace {

// The kernels are for the first two rules of the table.
template <typename First, typename Second, typename... Rest>
constexpr bool AdamComesFirst(RuleList<First, Second, Rest...> /*list*/) {
  return __is_same(First, AdamRule<true>) && __is_same(Second, AdamRule<false>);
}
static_assert(AdamComesFirst(AllRules()));

template <typename Share>
void RunOnHost(const std::byte* block, uint64_t first, uint64_t count) {
  const FlushDenormals flush;
  AdamArguments<Share> arguments;
  std::memcpy(&arguments, block, sizeof arguments);

  auto& planes = arguments.planes;
  planes.master += first;
  planes.momentum += first;
  planes.variance += first;
  planes.gradient += first;
  if (planes.param16 != nullptr) planes.param16 += first;
  planes.count = count;

  Run(arguments, 0, 1);
}

template <typename Share>
const device::Kernel* KernelOf();

#define TIDEPOOL_ADAM_KERNEL(kernel_name, ...)                                      \
  template <>                                                                       \
  const device::Kernel* KernelOf<AdamShare<__VA_ARGS__>>() {                        \
    using Share = AdamShare<__VA_ARGS__>;                                           \
    static_assert(sizeof(AdamArguments<Share>) <= device::kKernelArgumentBytesMax); \
    static const device::Kernel kernel = {                                          \
        .name = #kernel_name,                                                       \
        .image = &AdamImage(),                                                      \
        .argument_bytes = sizeof(AdamArguments<Share>),                             \
        .threads = kAdamThreads,                                                    \
        .items_a_thread = kVectorElements,                                          \
        .host = RunOnHost<Share>,                                                   \
        .item_bytes = 24 + sizeof(typename Share::Gradient::Stored)};               \
    return &kernel;                                                                 \
  }
TIDEPOOL_ADAM_FORMS(TIDEPOOL_ADAM_KERNEL)
#undef TIDEPOOL_ADAM_KERNEL

template <typename Rule>
void Launch(device::Stream* stream, const StepFactors& factors, const UpdateSpan& span,
            int64_t from) {
  WithGradient<Rule>(span, from, [&](auto share, const auto& planes) {
    using Share = decltype(share);
    const AdamArguments<Share> arguments = {FactorsOf<Rule>(factors), factors.gradient_scale,
                                            planes};
    stream->Launch(*KernelOf<Share>(), &arguments, span.count);
  });
}

}  // namespace

const char* WhyNotOnStream(const StepFactors& factors, const UpdateSpan& span) {
  if (factors.rule > 1) return "the kernel knows Adam and AdamW only";
  if (span.states != StateForm::kF32) return "the kernel knows fp32 states only";
  if (span.undo.progress != nullptr)
    return "the kernel opens no undo tiles: states on a GPU have two slots";

  if (span.count == 0) return nullptr;
  if (span.master == nullptr || span.momentum == nullptr || span.variance == nullptr ||
      span.gradient == nullptr)
    return "a plane is missing";
  if (span.param16 != nullptr && span.param16_dtype == DType::kF32)
    return "the 16-bit copy has an fp32 type";

  if (span.gradient_dtype == DType::kF32) return nullptr;
  if (span.param16 == nullptr || span.param16_dtype != span.gradient_dtype)
    return "16-bit gradients come with a copy of the same type";
  return nullptr;
}

const char* WhyNoAdam() {
  const char* const without = AdamImage().without;
  return *without == '\0' ? nullptr : without;
}

Status PrepareAdam(device::Device* device) {
#define TIDEPOOL_ADAM_PREPARE(kernel_name, ...) \
  TP_RETURN_IF_ERROR(device->Prepare(*KernelOf<AdamShare<__VA_ARGS__>>()));
  TIDEPOOL_ADAM_FORMS(TIDEPOOL_ADAM_PREPARE)
#undef TIDEPOOL_ADAM_PREPARE
  return {};
}

Status EnqueueAdam(device::Stream* stream, const StepFactors& factors, const UpdateSpan& span,
                   int64_t from) {
  TP_CHECK(WhyNotOnStream(factors, span) == nullptr, "an update that no stream does");
  if (span.count == 0) return stream->status();
  factors.rule == 0 ? Launch<AdamRule<true>>(stream, factors, span, from)
                    : Launch<AdamRule<false>>(stream, factors, span, from);
  return stream->status();
}

}  // namespace tidepool::optim

#include "trainer/profile/step_profile.h"

#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "base/check.h"
#include "trainer/hooks/operator_inputs.h"
#include "trainer/model/gpt.h"
#include "trainer/profile/meta_device.h"

namespace tidepool::trainer {
namespace {

c10::ScalarType TypeOf(DType dtype) {
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kBF16 ? at::kBFloat16 : at::kHalf;
}

// What the callbacks below write into.
struct Tracing {
  std::unordered_map<const c10::StorageImpl*, uint32_t> notes;
  StepProfile* profile;

  uint32_t NoteOf(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage()) return StorageBinding::kNoParameter;
    const auto found =
        notes.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    return found == notes.end() ? StorageBinding::kNoParameter : found->second;
  }
};

thread_local Tracing* tracing = nullptr;

struct Open final : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> Begin(const at::RecordFunction& function) {
  ++tracing->profile->operators;
  std::vector<uint32_t> notes =
      ParametersRead([](const at::Tensor& tensor) { return tracing->NoteOf(tensor); }, function);
  if (notes.empty()) return nullptr;
  tracing->profile->trace.events.push_back({UseEvent::Kind::kBegin, std::move(notes)});
  return std::make_unique<Open>();
}

void End(const at::RecordFunction&, at::ObserverContext* context) {
  if (context != nullptr) tracing->profile->trace.events.push_back({UseEvent::Kind::kEnd, {}});
}

// As trainer/hooks/gradient_hook.h has it: a gradient leaves at once, unless its parameter is used
// several times.
struct GradientLeaves final : torch::autograd::PostAccumulateGradHook {
  GradientLeaves(UseTrace* where, uint32_t which, bool kept)
      : trace(where), note(which), stays(kept) {}
  void operator()(const torch::autograd::Variable& parameter) override {
    trace->events.push_back({UseEvent::Kind::kGradient, {note}});
    if (!stays) parameter.mutable_grad().reset();
  }
  UseTrace* trace;
  uint32_t note;
  bool stays;
};

// Backward on this thread, as in trainer/engine/engine.cpp.
class OneThread {
 public:
  OneThread() : before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~OneThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const bool before_;
};

class Watch {
 public:
  explicit Watch(Tracing* now) {
    TP_CHECK(std::exchange(tracing, now) == nullptr, "one profile per thread");
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Begin, &End)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~Watch() {
    at::removeCallback(handle_);
    tracing = nullptr;
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  at::CallbackHandle handle_;
};

void Run(const ProfileTask& task, StepProfile* profile) {
  MetaDevice device;
  const at::TensorOptions options = at::TensorOptions().device(at::kMeta);
  Gpt model(task.shape, options.dtype(TypeOf(task.dtype)), task.lora);
  model.SetCheckpointing(task.checkpointing);

  Tracing now{{}, profile};
  const std::vector<ParameterNote> notes = GptParameters(task.shape, task.lora);
  const auto parameters = model.named_parameters();
  for (uint32_t note = 0; note < notes.size(); ++note) {
    const at::Tensor& parameter = parameters[notes[note].name];
    now.notes.emplace(parameter.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
                      note);
    if (!parameter.requires_grad()) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameter, std::make_unique<GradientLeaves>(&profile->trace, note, notes[note].multi_use));
  }

  const uint64_t weights = device.live_bytes();
  const std::vector<int64_t> sizes{static_cast<int64_t>(task.sequences),
                                   static_cast<int64_t>(task.tokens)};
  const at::Tensor inputs = at::empty(sizes, options.dtype(at::kLong)),
                   targets = at::empty(sizes, options.dtype(at::kLong));
  profile->buffer_bytes = device.live_bytes() - weights;

  device.ForgetPeak();
  {
    const OneThread one_thread;
    const Watch watch(&now);
    const at::Tensor loss = model.Loss(inputs, targets);
    const at::Tensor kept = loss.detach();
    (loss * 1.0).backward();
  }
  profile->activation_bytes = device.peak_bytes() - weights - profile->buffer_bytes;
}

}  // namespace

Result<StepProfile> ProfileStep(const ProfileTask& task) {
  TP_RETURN_IF_ERROR(CheckGptShape(task.shape));
  StepProfile profile;
  profile.boundary_bytes = task.sequences * task.tokens * task.shape.hidden * BytesOf(task.dtype);
  try {
    Run(task, &profile);
  } catch (const std::exception& error) {
    return Status(ErrorId::kLibraryFailed,
                  std::string("LibTorch, in the profile on its meta device: ") + error.what());
  }
  return profile;
}

}  // namespace tidepool::trainer

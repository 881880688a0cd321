#include "trainer/profile/step_recorder.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "base/check.h"
#include "trainer/hooks/operator_inputs.h"

namespace tidepool::trainer {
namespace {

// The arithmetic of a matrix product's own operator; operators inside or around it are ignored. 0:
// another operator.
double ArithmeticOf(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const bool adds = name == "aten::addmm" || name == "aten::baddbmm";
  if (!adds && name != "aten::mm" && name != "aten::bmm" && name != "aten::_grouped_mm") return 0;

  const auto inputs = function.inputs();
  const size_t first = adds ? 1 : 0;
  if (inputs.size() < first + 2 || !inputs[first].isTensor() || !inputs[first + 1].isTensor())
    return 0;
  const at::Tensor &left = inputs[first].toTensor(), &right = inputs[first + 1].toTensor();
  return 2.0 * static_cast<double>(left.numel()) * static_cast<double>(right.size(-1));
}

}  // namespace

// Written by the callbacks.
struct StepRecorder::State {
  // State to restore when an operator ends.
  struct Open final : at::ObserverContext {
    bool reads = false, computes = false;
  };

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

  static std::unique_ptr<at::ObserverContext> Begin(const at::RecordFunction& function);
  // A user's own backward node holds the parameters that were passed to its function.
  static std::unique_ptr<at::ObserverContext> BeginNode(const at::RecordFunction& node);
  static void End(const at::RecordFunction& function, at::ObserverContext* context);

  uint32_t NoteOf(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage()) return StorageBinding::kNoParameter;
    const auto found =
        notes.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    return found == notes.end() ? StorageBinding::kNoParameter : found->second;
  }
  void Remove();

  MetaBytes* bytes = nullptr;
  uint64_t before = 0;  // bytes of the model
  uint64_t peak = 0;    // between operators; 0: OperatorEnded was never called
  std::vector<at::Tensor> parameters;
  std::unordered_map<const c10::StorageImpl*, uint32_t> notes;
  uint32_t computing = 0;  // nested matrix products in flight
  at::CallbackHandle operators = 0, nodes = 0;
  bool watches = false;
  StepProfile profile;
};

namespace {

// The StepRecorder::State, which is private.
thread_local void* recording = nullptr;

}  // namespace

std::unique_ptr<at::ObserverContext> StepRecorder::State::Begin(
    const at::RecordFunction& function) {
  State& now = *static_cast<State*>(recording);
  ++now.profile.operators;

  const double arithmetic = ArithmeticOf(function);
  if (arithmetic > 0 && now.computing == 0) now.profile.arithmetic += arithmetic;
  std::vector<uint32_t> notes =
      ParametersRead([&now](const at::Tensor& tensor) { return now.NoteOf(tensor); }, function);
  if (notes.empty() && arithmetic <= 0) return nullptr;

  auto open = std::make_unique<Open>();
  open->reads = !notes.empty();
  open->computes = arithmetic > 0;
  if (open->reads) now.profile.trace.events.push_back({UseEvent::Kind::kBegin, std::move(notes)});
  if (open->computes) ++now.computing;
  return open;
}

std::unique_ptr<at::ObserverContext> StepRecorder::State::BeginNode(const at::RecordFunction&) {
  State& now = *static_cast<State*>(recording);
  std::vector<uint32_t> notes;
  FindParametersOfNode([&now](const at::Tensor& tensor) { return now.NoteOf(tensor); }, &notes);
  if (notes.empty()) return nullptr;

  auto open = std::make_unique<Open>();
  open->reads = true;
  now.profile.trace.events.push_back({UseEvent::Kind::kBegin, std::move(notes)});
  return open;
}

void StepRecorder::State::End(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr || recording == nullptr) return;
  State& now = *static_cast<State*>(recording);
  const auto* open = static_cast<Open*>(context);
  if (open->reads) now.profile.trace.events.push_back({UseEvent::Kind::kEnd, {}});
  if (open->computes) --now.computing;
}

void StepRecorder::State::Remove() {
  if (!std::exchange(watches, false)) return;
  at::removeCallback(operators);
  at::removeCallback(nodes);
  recording = nullptr;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad())
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
  parameters.clear();
}

StepRecorder::StepRecorder(MetaBytes* bytes) : state_(std::make_unique<State>()) {
  state_->bytes = bytes;
  state_->before = bytes->live();
}

StepRecorder::~StepRecorder() {
  state_->Remove();
}

void StepRecorder::Watch(std::vector<at::Tensor> parameters, const std::vector<bool>& stays) {
  State& state = *state_;
  TP_CHECK(std::exchange(recording, &state) == nullptr, "one recorder a thread");
  state.parameters = std::move(parameters);

  for (uint32_t note = 0; note < state.parameters.size(); ++note) {
    const at::Tensor& parameter = state.parameters[note];
    state.notes.emplace(parameter.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
                        note);
    if (!parameter.requires_grad()) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameter,
        std::make_unique<State::GradientLeaves>(&state.profile.trace, note, stays[note]));
  }

  state.profile.buffer_bytes = state.bytes->live() - state.before;
  state.bytes->ForgetPeak();
  state.operators =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&State::Begin, &State::End)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  state.nodes =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&State::BeginNode, &State::End)
                                     .scopes({at::RecordScope::BACKWARD_FUNCTION}));
  state.watches = true;
}

void StepRecorder::OperatorEnded() {
  state_->peak = std::max(state_->peak, state_->bytes->live());
}

StepProfile StepRecorder::Finish() {
  State& state = *state_;
  TP_CHECK(state.watches, "a recorder that finishes has watched");
  const uint64_t peak = state.peak > 0 ? state.peak : state.bytes->peak();
  const uint64_t others = state.before + state.profile.buffer_bytes;
  state.profile.activation_bytes = peak - std::min(peak, others);
  state.Remove();
  return std::move(state.profile);
}

}  // namespace tidepool::trainer

#include "trainer/engine/open_steps.h"

#include <set>
#include <string>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "base/point.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

// LibTorch's number of the backward running on this thread; -1: none.
bool InBackward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

Status Abandoned() {
  return Status(ErrorId::kStepAbandoned, "the last backward ended in an exception")
      .Why("part of its gradients had been handed in already, so the step cannot be ended")
      .Fix(
          "start all ranks again with resume=\"auto\": the job goes on behind its last sealed "
          "step");
}

uint32_t TrainedIn(const ChunkLayout& layout) {
  ParameterId id = 0;
  while (id < layout.parameters.size() && !layout.IsFrozen(id)) ++id;
  return id;
}

Status TooMany(uint32_t backwards, uint32_t micro_batches) {
  return Status(ErrorId::kUsageError, "backward was called " + std::to_string(backwards) +
                                          " times before step, and the job has " +
                                          std::to_string(micro_batches) + " a step")
      .Fix("give gradient_accumulation_steps=" + std::to_string(backwards) +
           " when the model is wrapped, or add the losses up and call backward once");
}

}  // namespace

OpenSteps::OpenSteps(const OpenParts& parts, const ChunkLayout& layout, uint32_t micro_batches,
                     Version sealed)
    : parts_(parts),
      layout_(layout),
      micro_batches_(micro_batches),
      version_(sealed),
      trained_(TrainedIn(layout)) {
  TouchNone();
  parts_.operators->SetGate([this] { return BeforeOperator(); }, [this] { SeeNode(); });
  parts_.operators->Install();
}

OpenSteps::~OpenSteps() {
  parts_.operators->Remove();
  parts_.operators->SetGate(nullptr, nullptr);
}

void OpenSteps::TouchNone() {
  untouched_.assign((trained_ + 63) / 64, ~uint64_t{0});
  if (trained_ % 64 != 0) untouched_.back() = (uint64_t{1} << trained_ % 64) - 1;
  untouched_count_ = trained_;
}

void OpenSteps::Touch(ParameterId parameter) {
  if (parameter >= trained_) return;
  uint64_t& word = untouched_[parameter / 64];
  const uint64_t bit = uint64_t{1} << parameter % 64;
  untouched_count_ -= (word & bit) != 0 ? 1 : 0;
  word &= ~bit;
}

Status OpenSteps::BeginPass(Pass pass) {
  TP_RETURN_IF_ERROR(CheckBound());
  // A free pass may have fetched for uses that did not happen.
  if (pass_ == Pass::kFree) TP_RETURN_IF_ERROR(parts_.cache->AwaitTransfers());
  const PassKind kind = pass == Pass::kTraining ? PassKind::kTrain : PassKind::kEvaluation;
  TP_RETURN_IF_ERROR(parts_.cache->BeginPass(kind, version_));
  parts_.operators->ApplyMoves();
  pass_ = pass;
  return {};
}

Status OpenSteps::BeforeOperator() {
  if (InBackward()) return NoteBackward();

  TP_RETURN_IF_ERROR(SettleBackward());
  if (c10::GradMode::is_enabled())
    return pass_ == Pass::kTraining ? Status() : BeginPass(Pass::kTraining);
  return pass_ == Pass::kNone ? BeginPass(Pass::kFree) : Status();
}

bool OpenSteps::abandoned() const {
  return in_backward_ && arrived_ && !InBackward();
}

// Called outside of backward: an exception may have ended the last one.
Status OpenSteps::SettleBackward() {
  if (abandoned()) return Abandoned();
  in_backward_ = is_bound_ = false;
  return {};
}

// Called at the first node of a backward of any model. A nested backward (of a checkpoint) begins
// later, so the end to wait for is that of the outermost.
void OpenSteps::SeeNode() {
  if (!in_backward_ && pass_ == Pass::kTraining && InBackward()) BeginBackward();
}

void OpenSteps::BeginBackward() {
  in_backward_ = true;
  TP_POINT("trainer.forward_done");
  torch::autograd::Engine::get_default_engine().queue_callback([this] { EndBackward(); });
}

// Called for an operator, or a gradient, of a backward.
Status OpenSteps::NoteBackward() {
  if (pass_ != Pass::kTraining) {
    return Status(ErrorId::kUsageError, "backward runs on a forward from before the last step")
        .Why("the weights have changed since, and those of the forward are gone")
        .Fix("run the forward again; call backward before step");
  }

  if (is_bound_) return {};
  // The forward may have begun before the memory was replaced.
  TP_RETURN_IF_ERROR(CheckBound());
  is_bound_ = true;
  if (!in_backward_) BeginBackward();
  return {};
}

// Runs when LibTorch ends the outermost backward; may throw.
void OpenSteps::EndBackward() {
  in_backward_ = is_bound_ = false;
  // torch.autograd.grad returns its gradients to the caller.
  if (!std::exchange(arrived_, false) && parts_.operators->status().ok()) return;
  TP_POINT("trainer.backward_done");

  parts_.operators->CheckThreads();
  const Status ended = parts_.gradients->FinishBackward(micro_batch_++);
  TORCH_CHECK(ended.ok(), ended.Format());
}

Status OpenSteps::BeginForward(bool training) {
  TP_RETURN_IF_ERROR(parts_.operators->status());
  if (InBackward()) return {};
  TP_RETURN_IF_ERROR(SettleBackward());
  if (training || pass_ == Pass::kTraining) return {};
  if (parts_.operators->holding() > 0) return {};
  Status begun = BeginPass(Pass::kFree);
  if (!begun.ok()) parts_.operators->Latch(begun);
  return begun;
}

Status OpenSteps::Arrived(ParameterId parameter) {
  TP_RETURN_IF_ERROR(parts_.operators->status());
  // torch.autograd.grad may still run after the last one.
  Status noted =
      micro_batch_ < micro_batches_ ? NoteBackward() : TooMany(micro_batch_ + 1, micro_batches_);
  if (noted.ok()) {
    arrived_ = true;
    Touch(parameter);
    parts_.gradients->Arrived(parameter);
  } else {
    parts_.operators->Latch(noted);
  }
  return parts_.operators->status();
}

Status OpenSteps::CheckRoom(const std::vector<at::Tensor>& tensors) const {
  std::set<uint32_t> parameters;
  std::set<ChunkId> chunks;
  uint64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    const uint32_t parameter = parts_.binding->ParameterOf(tensor);
    if (parameter == StorageBinding::kNoParameter || !parameters.insert(parameter).second) continue;
    elements += layout_.parameters[parameter].element_count;
    const ChunkId chunk = parts_.binding->ChunkOf(parameter);
    if (!layout_.chunks[chunk].resident) chunks.insert(chunk);
  }

  if (chunks.size() <= parts_.cache->blocks()) return {};
  return Status(ErrorId::kRcacheTooSmall, std::to_string(parameters.size()) + " parameters of " +
                                              FormatBytes(elements * BytesOf(layout_.dtype)) +
                                              " are read at once; they lie in " +
                                              std::to_string(chunks.size()) +
                                              " chunks, and the rCache has " +
                                              std::to_string(parts_.cache->blocks()) + " blocks")
      .Fix("hold fewer of them at once, or give more memory: --rcache 100% is the whole model");
}

Result<uint64_t> OpenSteps::Hold(const std::vector<at::Tensor>& tensors) {
  TP_RETURN_IF_ERROR(parts_.operators->status());
  TP_RETURN_IF_ERROR(CheckRoom(tensors));
  const uint64_t number = parts_.operators->Hold(tensors);
  TP_RETURN_IF_ERROR(parts_.operators->status());
  return number;
}

Status OpenSteps::LetGo(uint64_t number) {
  if (!parts_.operators->LetGo(number)) {
    return Status(ErrorId::kUsageError, "parameters are let go that were not held last")
        .Why("what is held is a stack, as operators within operators are")
        .Fix("leave the with-blocks of tidepool.held in the opposite order of their beginning");
  }
  return parts_.operators->status();
}

Status OpenSteps::Check() {
  if (pass_ == Pass::kFree && parts_.cache->trace_only() && parts_.operators->status().ok())
    parts_.operators->Latch(parts_.cache->BeginPass(PassKind::kEvaluation, version_));
  return parts_.operators->status();
}

Status OpenSteps::CheckBound() const {
  const uint32_t parameter = parts_.binding->Unbound();
  if (parameter == StorageBinding::kNoParameter) return {};
  return Status(ErrorId::kUsageError, "the parameter " + layout_.parameters[parameter].name +
                                          " has got other memory than the job's")
      .Why(
          "p.data = x, and what moves or converts a module, replace the memory in which the "
          "server's values are brought")
      .Fix("change, move or convert the module before the job begins");
}

Result<client::Outcome> OpenSteps::EndStep(client::StepEnd end) {
  TP_RETURN_IF_ERROR(Check());
  if (!InBackward()) TP_RETURN_IF_ERROR(SettleBackward());
  if (parts_.operators->holding() > 0) {
    return Status(ErrorId::kUsageError, "step was called while parameters are held")
        .Fix("call it behind the with-block of tidepool.held");
  }
  if (pass_ != Pass::kTraining || micro_batch_ == 0 || in_backward_) {
    return Status(ErrorId::kUsageError, "step was called without a backward since the last one")
        .Fix("call backward on a loss that depends on the model's parameters first");
  }

  Result<client::Outcome> sealed = Seal(end);
  if (!sealed.ok()) parts_.operators->Latch(sealed.status());
  return sealed;
}

Result<client::Outcome> OpenSteps::Seal(client::StepEnd end) {
  while (micro_batch_ < micro_batches_) {
    // The same chunk is submitted twice in a row, and must not overtake itself in flight.
    TP_RETURN_IF_ERROR(parts_.cache->AwaitTransfers());
    TP_RETURN_IF_ERROR(parts_.gradients->FinishBackward(micro_batch_++));
  }

  TP_RETURN_IF_ERROR(parts_.cache->FinishStep());
  parts_.operators->ApplyMoves();

  end.version = version_;
  if (untouched_count_ > 0) end.untouched = untouched_;
  TP_ASSIGN_OR_RETURN(const client::Ticket ticket, parts_.service->StartEndStep(end));
  TP_ASSIGN_OR_RETURN(const client::Outcome sealed, parts_.service->Wait(ticket));
  TP_POINT("trainer.step_sealed");
  version_ = sealed.version;
  pass_ = Pass::kNone;
  micro_batch_ = 0;
  TouchNone();
  return sealed;
}

}  // namespace tidepool::trainer

// OpenSteps: training steps whose forward and backward the caller runs itself, with LibTorch alone:
// passes of the rCache begin and end where its operators show that a step, a micro-batch or an
// evaluation does.
//
// One thread, the one that made the object. LibTorch's backward threads must be off there, from the
// first forward on (at::AutogradState, torch.autograd.set_multithreading_enabled). A training pass
// begins with the first operator that reads a parameter while gradients are recorded, and lasts
// until EndStep. A free pass (evaluation, generation, a look at a parameter) begins with the first
// such operator while they are not recorded, or with BeginForward; it ends when another pass
// begins. Within a training pass all reads belong to it. A micro-batch ends with the outermost
// backward in which a gradient arrived. The step has `micro_batches` of them; EndStep submits zeros
// for those that the caller left out. A parameter that no backward of the step reached, on any rank
// that has it, stays unchanged, as torch skips one whose grad is None; EndStep tells the server
// which ones these are on this rank. Errors: an operator's error is latched, as OperatorHook
// describes, and returned by every later call; a misuse (kUsageError) changes nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/hooks/gradient_hook.h"
#include "trainer/hooks/operator_hook.h"
#include "trainer/hooks/storage_binding.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

// Dependencies of the steps; all outlive the object.
struct OpenParts {
  client::ChunkService* service = nullptr;
  ParameterCache* cache = nullptr;
  StorageBinding* binding = nullptr;
  OperatorHook* operators = nullptr;
  GradientHooks* gradients = nullptr;
};

class OpenSteps {
 public:
  // Watches the thread's operators until destruction. `sealed`: the job's last sealed step.
  OpenSteps(const OpenParts& parts, const ChunkLayout& layout, uint32_t micro_batches,
            Version sealed);
  ~OpenSteps();
  OpenSteps(const OpenSteps&) = delete;
  OpenSteps& operator=(const OpenSteps&) = delete;

  // Announces a forward of the whole model; `training`: gradients are recorded. Optional: a free
  // pass that begins here follows the order of the previous one.
  Status BeginForward(bool training);
  // LibTorch has accumulated this parameter's gradient; it is freed here, or at the end of the
  // backward if the parameter is used several times. Errors: kUsageError (no training pass is
  // open), and as latched.
  Status Arrived(ParameterId parameter);
  // The model has left out the operators of this parameter, in forward or backward (PassUnitBy of
  // the engine): behind the backward its gradient counts as zeros, and not as None.
  void LeaveOut(ParameterId parameter) {
    if (in_backward_) Touch(parameter);
  }
  // Pins the parameters that contain these tensors until LetGo, for code that accesses them by
  // address; begins a pass like an operator. Returns a number for LetGo; 0: nothing to release.
  // Errors: kRcacheTooSmall (they do not fit together; nothing changes), and as latched.
  Result<uint64_t> Hold(const std::vector<at::Tensor>& tensors);
  // Releases a Hold. Errors: kUsageError (a later Hold is not released yet), and as latched.
  Status LetGo(uint64_t number);
  // The error that an operator has latched since; within a free pass also kRcacheTooSmall.
  Status Check();
  // Ends the step; its gradient is the sum over ranks divided by `end.loss_scale`. Waits until the
  // step is sealed. Errors: kUsageError (no backward since the last one), kRcacheTooSmall, and as
  // latched.
  Result<client::Outcome> EndStep(client::StepEnd end);

  // True when an exception has ended a backward: part of its gradients are at the server, so the
  // step can neither end nor continue. Later operators latch kStepAbandoned.
  bool abandoned() const;
  // The job's last sealed version.
  Version version() const { return version_; }
  // Number of backwards since the last EndStep.
  uint32_t micro_batch() const { return micro_batch_; }

 private:
  enum class Pass : uint8_t { kNone, kFree, kTraining };
  // Called before each outermost operator.
  Status BeforeOperator();
  Status BeginPass(Pass pass);
  void SeeNode();
  void BeginBackward();
  Status NoteBackward();
  Status SettleBackward();
  void EndBackward();
  Status CheckBound() const;
  Status CheckRoom(const std::vector<at::Tensor>& tensors) const;
  void Touch(ParameterId parameter);
  void TouchNone();
  Result<client::Outcome> Seal(client::StepEnd end);

  const OpenParts parts_;
  const ChunkLayout& layout_;
  const uint32_t micro_batches_;
  Version version_;
  Pass pass_ = Pass::kNone;
  uint32_t micro_batch_ = 0;
  bool in_backward_ = false;  // until LibTorch has ended the outermost one
  bool is_bound_ = false;     // CheckBound has succeeded in this backward
  bool arrived_ = false;      // a gradient has arrived in this micro-batch
  // Number of trained parameters, and those that no gradient has reached in this step, as a bit
  // set.
  const uint32_t trained_;
  uint32_t untouched_count_ = 0;
  std::vector<uint64_t> untouched_;
};

}  // namespace tidepool::trainer

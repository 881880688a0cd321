// OpenSteps: training steps whose forward and backward the caller runs itself, with LibTorch alone:
// passes of the rCache begin and end where its operators show that a step, a micro-batch or an
// evaluation does.
//
// One thread, the one that made the object. LibTorch's threads of backward must be off there, from
// the first forward on (at::AutogradState, torch.autograd.set_multithreading_enabled). A training
// pass begins with the first operator that reads a parameter while gradients are recorded, and
// lasts until EndStep. A free pass (evaluation, generation, a look at a parameter) begins with the
// first such operator while they are not, and wherever BeginForward says so; it ends where another
// pass begins. Within a training pass all that is read belongs to it. A micro-batch ends with the
// outermost backward in which a gradient came. The step has `micro_batches` of them; EndStep hands
// in zeros for those that the caller left out. A parameter that no backward of the step reached, on
// any rank that has it, is left alone by the step, as torch leaves one whose grad is None; EndStep
// tells the server which they are here. Errors: what an operator finds is latched, as OperatorHook
// says, and returned by every later call; a call that is wrong in itself (kUsageError) changes
// nothing.
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

// What the steps run on; all outlive the object.
struct OpenParts {
  client::ChunkService* service = nullptr;
  ParameterCache* cache = nullptr;
  StorageBinding* binding = nullptr;
  OperatorHook* operators = nullptr;
  GradientHooks* gradients = nullptr;
};

class OpenSteps {
 public:
  // Watches the thread's operators until the object ends. `sealed`: the job's last sealed step.
  OpenSteps(const OpenParts& parts, const ChunkLayout& layout, uint32_t micro_batches,
            Version sealed);
  ~OpenSteps();
  OpenSteps(const OpenSteps&) = delete;
  OpenSteps& operator=(const OpenSteps&) = delete;

  // A forward of the whole model begins; `training`: gradients are recorded. Optional: a free pass
  // that begins here follows the order of the one before.
  Status BeginForward(bool training);
  // LibTorch has accumulated the gradient of this parameter; it is given up here, or at the end of
  // the backward where the parameter is used several times. Errors: kUsageError (no training pass
  // is open), and as latched.
  Status Arrived(ParameterId parameter);
  // Has the parameters in which these tensors lie there until LetGo, for code that reads them by
  // their addresses; begins a pass as an operator would. Returns a number for LetGo; 0: nothing to
  // let go. Errors: kRcacheTooSmall (they have no room at once; nothing is changed), and as
  // latched.
  Result<uint64_t> Hold(const std::vector<at::Tensor>& tensors);
  // Errors: kUsageError (what was held later is held still), and as latched.
  Status LetGo(uint64_t number);
  // What an operator has latched since; within a free pass also kRcacheTooSmall.
  Status Check();
  // Ends the step, with a gradient that is the sum over ranks divided by `end.loss_scale`; waits
  // until it is sealed. Errors: kUsageError (no backward since the last one), kRcacheTooSmall, and
  // as latched.
  Result<client::Outcome> EndStep(client::StepEnd end);

  // True when an exception has ended a backward: part of its gradients are with the server, so the
  // step can be neither ended nor gone on with. Later operators latch kStepAbandoned.
  bool abandoned() const;
  // Sealed steps of the job.
  Version version() const { return version_; }
  // Backward runs since the last EndStep.
  uint32_t micro_batch() const { return micro_batch_; }

 private:
  enum class Pass : uint8_t { kNone, kFree, kTraining };
  // Before an operator that is within no other one.
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
  bool is_bound_ = false;     // CheckBound has found so, in this backward
  bool arrived_ = false;      // a gradient, in this micro-batch
  // Trained parameters, and those that no gradient has reached in this step, as a set of bits.
  const uint32_t trained_;
  uint32_t untouched_count_ = 0;
  std::vector<uint64_t> untouched_;
};

}  // namespace tidepool::trainer

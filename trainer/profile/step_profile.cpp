#include "trainer/profile/step_profile.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/core/AutogradState.h>

#include "trainer/model/gpt.h"
#include "trainer/pipeline/staged_step.h"
#include "trainer/profile/meta_bytes.h"
#include "trainer/profile/meta_device.h"

namespace tidepool::trainer {
namespace {

c10::ScalarType TypeOf(DType dtype) {
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kBF16 ? at::kBFloat16 : at::kHalf;
}

// Runs backward on this thread, as in trainer/engine/engine.cpp.
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

// All micro-batches are equal on the meta device.
void RunStages(const ProfileTask& task, const at::Tensor& inputs, const at::Tensor& targets,
               Gpt* model) {
  StagedWork work;
  work.stages = static_cast<uint32_t>(task.stage_ends.size());
  work.micro_batches = task.micro_batches;

  work.stage = [&](uint32_t stage, uint32_t, const at::Tensor& input) {
    const uint32_t first = stage == 0 ? 0 : task.stage_ends[stage - 1];
    const at::Tensor hidden =
        model->RunBlocks(first, task.stage_ends[stage], stage == 0 ? inputs : input);
    return stage + 1 == work.stages ? model->LossBehind(hidden, targets) : hidden;
  };

  const std::vector<bool>& own = task.own_stages;
  if (!own.empty()) {
    const at::TensorOptions options = at::TensorOptions().device(at::kMeta);
    work.owns = [&own](uint32_t stage) { return own[stage]; };
    work.receive = [&task, options](bool, uint32_t, uint32_t) {
      return at::empty({static_cast<int64_t>(task.sequences), static_cast<int64_t>(task.tokens),
                        static_cast<int64_t>(task.shape.hidden)},
                       options.dtype(TypeOf(task.dtype)));
    };
    work.send = [](bool, uint32_t, uint32_t, const at::Tensor&) {};
    // The last stage's rank has a copy of the token embedding if another rank has the first stage.
    const bool is_tied = HasTiedHead(task.shape);
    if (is_tied && own.back() && !own.front()) {
      const at::Tensor& embedding = model->token_embedding();
      model->SetHead(at::empty(embedding.sizes(), embedding.options()).requires_grad_(true));
    }
    if (is_tied && own.front() && !own.back()) {
      const at::NoGradGuard no_gradients;
      const at::Tensor copy = model->token_embedding().clone();
    }
  }
  RunStagedStep(work);
}

StepProfile Run(const ProfileTask& task) {
  MetaBytes bytes;
  const MetaDevice device;
  const at::TensorOptions options = at::TensorOptions().device(at::kMeta);
  Gpt model(task.shape, options.dtype(TypeOf(task.dtype)), task.lora,
            TokenExchange(task.expert_rank, TokenMover()));
  model.SetCheckpointing(task.checkpointing);
  model.SetVocabTiles(std::min(task.vocab_tiles, task.shape.vocab));

  StepRecorder recorder(&bytes);
  const std::vector<int64_t> sizes{static_cast<int64_t>(task.sequences),
                                   static_cast<int64_t>(task.tokens)};
  const at::Tensor inputs = at::empty(sizes, options.dtype(at::kLong)),
                   targets = at::empty(sizes, options.dtype(at::kLong));

  std::vector<at::Tensor> parameters;
  std::vector<bool> stays;
  const auto named = model.named_parameters();
  for (const ParameterNote& note : GptParameters(task.shape, task.lora)) {
    parameters.push_back(named[note.name]);
    stays.push_back(note.multi_use);
  }

  const OneThread one_thread;
  recorder.Watch(std::move(parameters), stays);
  if (!task.stage_ends.empty()) {
    RunStages(task, inputs, targets, &model);
    return recorder.Finish();
  }

  const at::Tensor loss = model.Loss(inputs, targets);
  const at::Tensor kept = loss.detach();
  (loss * 1.0).backward();
  return recorder.Finish();
}

}  // namespace

Result<StepProfile> ProfileStep(const ProfileTask& task) {
  TP_RETURN_IF_ERROR(CheckGptShape(task.shape));
  StepProfile profile;
  try {
    profile = Run(task);
  } catch (const std::exception& error) {
    return Status(ErrorId::kLibraryFailed,
                  std::string("LibTorch, in the profile on its meta device: ") + error.what());
  }
  profile.boundary_bytes = task.sequences * task.tokens * task.shape.hidden * BytesOf(task.dtype);
  return profile;
}

}  // namespace tidepool::trainer

// RunModel: the model of one attempt of a run, the engine that steps it through this rank's slot,
// and the trace of its steps.
//
// One thread (the trainer's main thread). Made after the ranks have met; must be destroyed before
// the session leaves its slot, in whose memory operators and transfers work.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include <ATen/core/Tensor.h>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/data/batch_cursor.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/train_loop.h"
#include "trainer/model/gpt.h"
#include "trainer/output/traced_seams.h"
#include "trainer/pipeline/stage_links.h"
#include "trainer/pipeline/stage_sums.h"
#include "trainer/pipeline/staged_step.h"
#include "trainer/run/run_device.h"
#include "trainer/run/run_options.h"
#include "trainer/run/run_plan.h"
#include "trainer/run/run_session.h"

namespace tidepool::trainer {

class LoadedCheckpoint;

// The inputs of a RunModel; all outlive it.
struct RunModelParts {
  const RunOptions& options;
  const RunPlan& plan;
  RunDevice* device = nullptr;
  RunSession* session = nullptr;  // has met the other ranks
  Clock* clock = nullptr;
  // Whether the order of a step is profiled before the first one: not if other threads of this
  // process use LibTorch meanwhile (ProfileStep). Equal on all ranks of a job.
  bool foresees = true;
};

class RunModel {
 public:
  // Makes the model, whose parameters have no memory of their own, and the engine, which takes the
  // order of a training step from a profile. Errors: those of TrainingEngine::Create and
  // ProfileRun.
  static Result<std::unique_ptr<RunModel>> Make(const RunModelParts& parts);

  // Puts this rank's shards of new weights: those of --from, else initial weights from the seed.
  // Errors: those of TrainingEngine::LoadWeights and SavedModel::Read.
  Status LoadWeights();
  // Puts weights and moments of a checkpoint. Errors: those of LoadWeights, kDataBad.
  Status LoadCheckpoint(const LoadedCheckpoint& from);
  // The mean loss of a batch, a scalar with an autograd graph. All ranks of a pipeline call it,
  // without gradients; ranks that do not compute the last stage get 0, and failures are latched.
  at::Tensor Loss(const Batch& batch);
  // Runs a whole step stage by stage, if the plan has stages: for TrainTask::whole_step. Errors:
  // those of TrainingEngine::RunWhole.
  Result<StagedBytes> StagedStep(Version version, std::span<const Batch> batches,
                                 double gradient_scale);
  TrainingEngine* engine() { return engine_.get(); }
  const TrainingEngine* engine() const { return engine_.get(); }
  // Null without --trace, and on all ranks but rank 0.
  RunTrace* trace() { return trace_.get(); }

 private:
  // Inputs of a step, or of one forward, through the stages.
  struct StagedPass {
    std::span<const Batch> batches;
    Status failed{};
  };

  explicit RunModel(const RunModelParts& parts) : parts_(parts) {}
  Status MakeEngine();
  Status MakeStagedEngine(EngineOptions engine, EngineParts parts);
  Status ForeseeSteps();
  Status ForeseeStages();
  StagedWork WorkOf(StagedPass* pass);
  void AddLinks(StagedPass* pass, StagedWork* work);
  at::Tensor RunStage(uint32_t stage, const Batch& batch, const at::Tensor& input);
  // If two ranks hold the ends of the model: sends the token embedding of the current version to
  // the last stage's rank, once.
  Status ShareHead();
  StageSizes SizesOf(const Batch& batch) const;
  Status TakeHeadPart(uint32_t micro_batch);
  void GiveHeadPart(uint32_t micro_batch);
  at::Tensor StagedLoss(const Batch& batch);

  const RunModelParts parts_;
  std::unique_ptr<RunTrace> trace_;
  std::unique_ptr<Gpt> model_;
  std::optional<StageSums> sums_;    // with --pipeline; outlives the engine
  std::optional<StageLinks> links_;  // with a pipeline of several ranks
  at::Tensor head_;                  // the embedding, where another rank has the first stage
  bool head_is_old_ = true;
  std::unique_ptr<TrainingEngine> engine_;
};

}  // namespace tidepool::trainer

// RunModel: what one attempt of a run trains: the model, the engine that steps it through this
// rank's slot, and the trace of its steps.
//
// One thread (the trainer's main thread). It is made once the ranks have met, and must go before
// the session leaves its slot: operators and transfers work in the memory of that slot.
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

// All of it outlives the RunModel.
struct RunModelParts {
  const RunOptions& options;
  const RunPlan& plan;
  RunDevice* device = nullptr;
  RunSession* session = nullptr;  // has met the other ranks
  Clock* clock = nullptr;
  // Whether the order of a step is profiled before the first one: not where other threads of this
  // process use LibTorch meanwhile (ProfileStep). All ranks of a job do the same.
  bool foresees = true;
};

class RunModel {
 public:
  // Makes the model, whose parameters take no memory of their own, and the engine, which knows the
  // order of a training step from a profile. Errors: those of TrainingEngine::Create and
  // ProfileRun.
  static Result<std::unique_ptr<RunModel>> Make(const RunModelParts& parts);

  // Puts this rank's shards of new weights: those of --from, else made from the seed. Errors: those
  // of TrainingEngine::LoadWeights and SavedModel::Read.
  Status LoadWeights();
  // The same from a checkpoint, with the moments. Errors: also kDataBad.
  Status LoadCheckpoint(const LoadedCheckpoint& from);
  // The mean loss of a batch, a scalar with a graph behind it. The ranks of a pipeline all call it,
  // without gradients: those that do not compute the last stage get 0, and what has failed is
  // latched.
  at::Tensor Loss(const Batch& batch);
  // A whole step, stage by stage, where the plan has stages: for TrainTask::whole_step. Errors:
  // those of TrainingEngine::RunWhole.
  Result<StagedBytes> StagedStep(Version version, std::span<const Batch> batches,
                                 double gradient_scale);
  TrainingEngine* engine() { return engine_.get(); }
  const TrainingEngine* engine() const { return engine_.get(); }
  // Null without --trace, and on other ranks than 0.
  RunTrace* trace() { return trace_.get(); }

 private:
  // What a step of stages, or the forward of one, works on.
  struct StagedPass {
    std::span<const Batch> batches;
    Status failed{};
  };

  explicit RunModel(const RunModelParts& parts) : parts_(parts) {}
  TokenExchange ExchangeOfTokens();
  Status MakeEngine();
  Status MakeStagedEngine(EngineOptions engine, EngineParts parts);
  Status ForeseeSteps();
  Status ForeseeStages();
  StagedWork WorkOf(StagedPass* pass);
  void AddLinks(StagedPass* pass, StagedWork* work);
  at::Tensor RunStage(uint32_t stage, const Batch& batch, const at::Tensor& input);
  // With the ends of the model on two ranks: the last stage's rank gets the token embedding of the
  // present version, once.
  Status ShareHead();
  StageSizes SizesOf(const Batch& batch) const;
  Status TakeHeadPart(uint32_t micro_batch);
  void GiveHeadPart(uint32_t micro_batch);
  at::Tensor StagedLoss(const Batch& batch);

  const RunModelParts parts_;
  std::unique_ptr<RunTrace> trace_;
  std::unique_ptr<Gpt> model_;
  std::optional<StageSums> sums_;    // with stages; outlives the engine
  std::optional<StageLinks> links_;  // with several ranks
  at::Tensor head_;                  // of the last stage's rank, where the first is another's
  bool head_is_old_ = true;
  std::unique_ptr<TrainingEngine> engine_;
};

}  // namespace tidepool::trainer

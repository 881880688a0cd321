// TrainingEngine: one rank's training steps over a memory server: weights in, forward and backward
// through the hooks, gradients out, the step sealed.
//
// One thread (the trainer's main thread). Any LibTorch module can be trained: the engine is given
// its parameter tensors and loss functions and never looks at its code. After an error the step is
// abandoned unsealed, and every later call returns the same error.
//
// On a GPU the calling thread's current stream must be EngineParts::streams.compute from Create on
// (trainer/run/run_device.h): operators are put into it and end later. Only TakeLosses waits for
// it, and EndStep for the server.
//
// Data groups: every parameter belongs to one (ParameterNote::data_group;
// LayoutOptions::data_groups lists the ranks of each): dense ones to that of all ranks, for
// example, and each expert to one of few ranks, or of one. All ranks give the same layout, and
// tensors for all of its parameters; a parameter of a group in which a rank is no member takes no
// memory there, and must not be used there. A gradient is summed over the ranks of its parameter's
// group, no matter how many they are: with gradient_scale 1 / (micro-batches x all ranks) that
// makes every gradient, also an expert's, that of the mean loss of all ranks. Ranks that share a
// group use their chunks in the same order: each uses experts of its own where the others use
// theirs.
//
// Frozen parameters (ParameterNote::frozen) are read and never trained: their tensors ask for no
// gradient, and their values come to the server by client::ProvideFrozen, not by LoadWeights.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/clock.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/comm/collective.h"
#include "trainer/engine/open_steps.h"
#include "trainer/hooks/gradient_hook.h"
#include "trainer/hooks/operator_hook.h"
#include "trainer/hooks/storage_binding.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/traffic.h"
#include "trainer/output/step_trace.h"

namespace tidepool::trainer {

// How the engine works.
struct EngineOptions {
  uint32_t rank = 0;
  uint32_t micro_batches = 1;
  CacheOptions cache;
  // By data group: bytes of gradients that a step of RunWhole hands in here; empty without it.
  std::vector<uint64_t> sum_bytes = {};
};

// What an engine works with. `service` and the collectives (one a data group, null where this rank
// is no member) must outlive the engine.
struct EngineParts {
  client::ChunkService* service = nullptr;
  // By data group; as RunSession::groups makes them of the layout's. The engine's alone: transfers
  // start in them whenever a chunk arrives, also while the engine is not called, so that an
  // operation of other code would have another place in their order on each rank.
  std::vector<Collective*> groups;
  // By ParameterId: dense leaves of their chunks' dtypes; the engine gives up their own memory.
  std::vector<at::Tensor> parameters;
  Clock* clock = nullptr;
  EvictionPolicies policies = {};  // of the rCache
  CacheStreams streams = {};       // where the parameters are a device's
  StepTrace* trace = nullptr;      // told when forward and backward begin
  // kCaller only where the caller runs backward itself (TrainingEngine::Open).
  GradientTeller gradients = GradientTeller::kHooks;
  // Where given, takes all gradients; steps are those of RunWhole then.
  GradientSink sink = nullptr;
};

// Makes the loss of one micro-batch, a scalar with a graph behind it.
using LossFunction = std::function<at::Tensor()>;
// Forward and backward of a whole step: appends the micro-batches' losses. An error ends the step.
using WholeStep = std::function<Status(std::vector<at::Tensor>* losses)>;
// Fills the fp32 values of one parameter, row-major; called once for each parameter, in order.
using WeightSource = std::function<Status(ParameterId, std::span<float>)>;

class TrainingEngine {
 public:
  // Errors: kRcacheTooSmall, kMemoryMapFailed, kUsageError (ranks with a data group in common have
  // chunks that are not alike; a frozen parameter asks for a gradient).
  static Result<std::unique_ptr<TrainingEngine>> Create(const ChunkLayout& layout,
                                                        const EngineOptions& options,
                                                        EngineParts parts);
  ~TrainingEngine();

  // Puts this rank's shards of all parameters but frozen ones, one rCache-full after another. Call
  // once, before the first step of a new job.
  Status LoadWeights(const WeightSource& source);
  // The same with the moments of a checkpoint: `planes` of them (client::Range), read from
  // `moments`.
  using MomentSource = std::function<Status(ParameterId, uint32_t plane, std::span<float>)>;
  Status LoadStates(const WeightSource& source, const MomentSource& moments,
                    std::span<const uint32_t> planes);

  // Forward and backward of one micro-batch of the step that starts from `version`. The gradient
  // that is summed over micro-batches and ranks is that of loss x gradient_scale.
  // Errors: kRcacheTooSmall (found in the first step; names the smallest --rcache that works),
  // kLibraryFailed, kDeviceMemoryShort, kCudaFailed, kUsageError (a frozen parameter asks for a
  // gradient), and what else the cache latched.
  Status RunMicroBatch(Version version, uint32_t micro_batch, const LossFunction& loss,
                       double gradient_scale);
  // All micro-batches of the step that starts from `version`, in an order of the caller's; their
  // gradients go to EngineParts::sink, which hands them in (ParameterCache::SubmitSum). Errors: as
  // RunMicroBatch, and what `step` returned.
  Status RunWhole(Version version, const WholeStep& step);
  // The first error within the present step; `step` above should end with it.
  const Status& status() const { return operators_->status(); }
  // The present pass has failed for a reason of the caller's, within its loss or step: it ends with
  // this error, where it has none yet.
  void Fail(Status why) { operators_->Latch(std::move(why)); }
  // The losses before scaling of the micro-batches run since the last call, in order; on a GPU it
  // waits for them, once.
  Result<std::vector<double>> TakeLosses();
  // Both for one micro-batch: its loss.
  Result<double> TrainMicroBatch(Version version, uint32_t micro_batch, const LossFunction& loss,
                                 double gradient_scale);
  // Waits until all gradients are in and the step is sealed. `before` runs between the two; its
  // error leaves the step unsealed.
  Result<client::Outcome> EndStep(const client::StepEnd& end,
                                  const std::function<Status()>& before = nullptr);
  // Forward without gradients on the parameters of `version`. Nothing is in flight when it has
  // returned, also where `loss` used fewer chunks than the evaluation before.
  Result<double> Evaluate(Version version, const LossFunction& loss);

  // Gives forward and backward to the caller: operators of this thread are watched from here on,
  // also between calls, until the engine ends. Call once, behind LoadWeights; RunMicroBatch,
  // TrainMicroBatch, EndStep and Evaluate must not be called then.
  OpenSteps* Open(Version sealed);

  // Gives the order of a training step that is known before the first one; without moments, or
  // where the rCache is too small for it, the first step records its own. Before the first step.
  void Foresee(AccessSchedule order);

  // The rCache, for reports.
  const ParameterCache& cache() const { return *cache_; }
  // The same, for a sink.
  ParameterCache* open_cache() { return cache_.get(); }
  // What the plan of the last ended step says that this rank had to move, by data group; empty
  // while the order was being recorded.
  const std::vector<GroupTraffic>& planned_traffic() const { return planned_traffic_; }

 private:
  TrainingEngine(const ChunkLayout& layout, const EngineOptions& options,
                 client::ChunkService* service)
      : layout_(layout), options_(options), service_(service) {}
  // Runs `body` with the hooks installed; c10's exceptions become a Status, and a cause latched by
  // a hook takes precedence.
  Status Guarded(const std::function<void()>& body);
  void Computes(const std::string& what) {
    if (trace_ != nullptr) trace_->Compute(what);
  }
  Status TraceTraining(const LossFunction& loss);
  // A model that tries to train what is frozen.
  Status CheckFrozen() const;

  const ChunkLayout layout_;
  const EngineOptions options_;
  client::ChunkService* const service_;
  StepTrace* trace_ = nullptr;
  CacheStreams streams_;
  std::unique_ptr<ParameterCache> cache_;
  std::unique_ptr<StorageBinding> binding_;
  std::unique_ptr<OperatorHook> operators_;
  std::unique_ptr<GradientHooks> gradients_;
  std::unique_ptr<OpenSteps> open_;
  std::vector<std::pair<ParameterId, at::Tensor>> frozen_;
  std::vector<at::Tensor> losses_;  // scalars, where the model made them
  std::vector<GroupTraffic> planned_traffic_;
};

}  // namespace tidepool::trainer

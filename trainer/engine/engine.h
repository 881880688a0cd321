// TrainingEngine: one rank's training steps over a memory server: puts weights, runs forward and
// backward through the hooks, submits gradients, and seals the step.
//
// One thread (the trainer's main thread). It trains any LibTorch module: it gets parameter tensors
// and loss functions and does not depend on the module's code. After an error the step is abandoned
// unsealed, and every later call returns the same error.
//
// On a GPU the calling thread's current stream must be EngineParts::streams.compute from Create on
// (trainer/run/run_device.h): operators are enqueued there and end later. Only TakeLosses waits for
// it, and EndStep for the server.
//
// Data groups: every parameter belongs to one (ParameterNote::data_group;
// LayoutOptions::data_groups lists the ranks of each): dense ones to that of all ranks, for
// example, and each expert to one of few ranks, or of one. All ranks pass the same layout, and
// tensors for all of its parameters; a parameter of a group without this rank takes no memory here
// and must not be used here. A gradient is summed over the ranks of its parameter's group, whatever
// their number: with gradient_scale 1 / (micro-batches x all ranks) every gradient, also an
// expert's, is that of the mean loss of all ranks. Ranks that share a group use their chunks in the
// same order: each uses its own experts where the others use theirs.
//
// Frozen parameters (ParameterNote::frozen) are read and never trained: their tensors must not
// require gradients, and client::ProvideFrozen, not LoadWeights, puts their values.
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

// Settings of an engine.
struct EngineOptions {
  uint32_t rank = 0;
  uint32_t micro_batches = 1;
  CacheOptions cache;
  // By data group: bytes of gradients that a RunWhole step submits here; empty without RunWhole.
  std::vector<uint64_t> sum_bytes = {};
};

// Dependencies of an engine. `service` and the collectives (one per data group, null where this
// rank is not a member) must outlive the engine.
struct EngineParts {
  client::ChunkService* service = nullptr;
  // By data group, empty for one rank; RunSession::groups makes them. Exclusive to the engine: it
  // starts transfers whenever a chunk arrives, also between its calls, so other code's operations
  // would come at a different position on each rank.
  std::vector<Collective*> groups;
  // By ParameterId: dense leaves with their chunks' dtypes; the engine frees their own memory.
  std::vector<at::Tensor> parameters;
  Clock* clock = nullptr;
  EvictionPolicies policies = {};  // for the rCache
  CacheStreams streams = {};       // if the parameters are on a device
  MemoryLimit limit = {};          // of all that this rank uses; not with streams
  StepTrace* trace = nullptr;      // notified when forward and backward begin
  // kCaller only if the caller runs backward itself (TrainingEngine::Open).
  GradientTeller gradients = GradientTeller::kHooks;
  // If set, takes all gradients; steps then run through RunWhole.
  GradientSink sink = nullptr;
};

// Computes the loss of one micro-batch, a scalar with an autograd graph.
using LossFunction = std::function<at::Tensor()>;
// Forward and backward of a whole step: appends the micro-batches' losses. An error ends the step.
using WholeStep = std::function<Status(std::vector<at::Tensor>* losses)>;
// Fills the fp32 values of one parameter, row-major; called once per parameter, in order.
using WeightSource = std::function<Status(ParameterId, std::span<float>)>;

class TrainingEngine {
 public:
  // Errors: kRcacheTooSmall, kMemoryMapFailed, kUsageError (ranks of a common data group have
  // chunks that are not alike; a frozen parameter requires a gradient).
  static Result<std::unique_ptr<TrainingEngine>> Create(const ChunkLayout& layout,
                                                        const EngineOptions& options,
                                                        EngineParts parts);
  ~TrainingEngine();

  // Puts this rank's shards of all parameters except frozen ones, one rCache-full after another.
  // Call once, before the first step of a new job.
  Status LoadWeights(const WeightSource& source);
  // The same with a checkpoint's moments: `planes` lists those (client::Range) to read from
  // `moments`.
  using MomentSource = std::function<Status(ParameterId, uint32_t plane, std::span<float>)>;
  Status LoadStates(const WeightSource& source, const MomentSource& moments,
                    std::span<const uint32_t> planes);

  // Runs forward and backward of one micro-batch of the step that starts from `version`. The
  // gradient summed over micro-batches and ranks is that of loss x gradient_scale. Errors:
  // kRcacheTooSmall (found in the first step; names the smallest --rcache that works),
  // kLibraryFailed, kDeviceMemoryShort, kCudaFailed, kUsageError (a frozen parameter requires a
  // gradient), and other latched errors of the cache.
  Status RunMicroBatch(Version version, uint32_t micro_batch, const LossFunction& loss,
                       double gradient_scale);
  // Runs all micro-batches of the step that starts from `version`, in the caller's order; their
  // gradients go to EngineParts::sink, which submits them (ParameterCache::SubmitSum). Errors: as
  // RunMicroBatch, and those of `step`.
  Status RunWhole(Version version, const WholeStep& step);
  // The first error of the present step; `step` above should end with it.
  const Status& status() const { return operators_->status(); }
  // Fails the present pass for a reason of the caller's, within its loss or step: the pass ends
  // with `why`, unless it has an error already.
  void Fail(Status why) { operators_->Latch(std::move(why)); }
  // The unscaled losses of the micro-batches run since the last call, in order; on a GPU waits for
  // them, once.
  Result<std::vector<double>> TakeLosses();
  // Runs one micro-batch and returns its loss.
  Result<double> TrainMicroBatch(Version version, uint32_t micro_batch, const LossFunction& loss,
                                 double gradient_scale);
  // Waits until all gradients are in and the step is sealed. `before` runs in between; its error
  // leaves the step unsealed.
  Result<client::Outcome> EndStep(const client::StepEnd& end,
                                  const std::function<Status()>& before = nullptr);
  // Runs forward without gradients on the parameters of `version`. No transfer is in flight
  // afterwards, even if `loss` used fewer chunks than the previous evaluation.
  Result<double> Evaluate(Version version, const LossFunction& loss);

  // Lets the caller run forward and backward: this thread's operators are watched from now on, also
  // between calls, until the engine ends. Call once, after LoadWeights; RunMicroBatch,
  // TrainMicroBatch, EndStep and Evaluate must not be called afterwards.
  OpenSteps* Open(Version sealed);

  // For models with parameters that not every micro-batch uses (ParameterNote::unit), called within
  // their forward and backward: ParameterCache::RouteUnits and PassBy. Failures end the pass as
  // those of operators do.
  bool RouteUnits(const UnitUses& uses);
  void PassUnitBy(uint32_t unit);

  // Sets the order of a training step in advance, before the first step; without moments, or if the
  // rCache is too small for it, the first step records its own. `others`: the most bytes beside
  // chunks that the profile foresees, for a memory limit.
  void Foresee(AccessSchedule order, uint64_t others = 0);

  // The rCache, for reports.
  const ParameterCache& cache() const { return *cache_; }
  // The same, for a sink.
  ParameterCache* open_cache() { return cache_.get(); }
  // The traffic that this rank's plan of the last ended step requires, by data group; empty while
  // the order was being recorded.
  const std::vector<GroupTraffic>& planned_traffic() const { return planned_traffic_; }

 private:
  TrainingEngine(const ChunkLayout& layout, const EngineOptions& options,
                 client::ChunkService* service)
      : layout_(layout), options_(options), service_(service) {}
  // Runs `body` with the hooks installed; turns c10's exceptions into a Status; a cause latched by
  // a hook takes precedence.
  Status Guarded(const std::function<void()>& body);
  void Computes(const std::string& what) {
    if (trace_ != nullptr) trace_->Compute(what);
  }
  Status TraceTraining(const LossFunction& loss);
  // Error of a model that tries to train frozen parameters.
  Status CheckFrozen() const;
  // Connects the operator hook to the trace, if there is one.
  void ListenForTrace();

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
  std::vector<at::Tensor> losses_;  // scalars, on the model's device
  std::vector<GroupTraffic> planned_traffic_;
};

}  // namespace tidepool::trainer

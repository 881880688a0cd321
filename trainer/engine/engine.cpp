#include "trainer/engine/engine.h"

#include <utility>

#include <ATen/ops/stack.h>
#include <c10/core/AutogradState.h>
#include <torch/utils.h>

#include "base/point.h"
#include "trainer/cache/weight_put.h"
#include "trainer/engine/torch_errors.h"

namespace tidepool::trainer {
namespace {

constexpr uint32_t kScalePlanesFrom = 3;  // first plane of scales in client::Range

// Runs backward on the calling thread, also for a GPU's operators: LibTorch's engine has a thread
// per device and hands a graph node to its device's thread unless this flag of the calling thread
// is off; then Engine::ready_queue returns the caller's own queue for every device, and
// Engine::execute drains it before it returns. The flag is part of the caller's state kept in a
// GraphTask (ATen/ThreadLocalState.h), so a re-entrant backward (trainer/model/checkpoint.h) has it
// too. The device threads are created anyway, and sleep.
class BackwardOnThisThread {
 public:
  BackwardOnThisThread()
      : before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~BackwardOnThisThread() {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(before_);
  }
  BackwardOnThisThread(const BackwardOnThisThread&) = delete;
  BackwardOnThisThread& operator=(const BackwardOnThisThread&) = delete;

 private:
  const bool before_;
};

}  // namespace

TrainingEngine::~TrainingEngine() {
  open_.reset();
  if (operators_) operators_->Remove();
}

Result<std::unique_ptr<TrainingEngine>> TrainingEngine::Create(const ChunkLayout& layout,
                                                               const EngineOptions& options,
                                                               EngineParts parts) {
  std::unique_ptr<TrainingEngine> engine(new TrainingEngine(layout, options, parts.service));
  engine->trace_ = parts.trace;
  engine->streams_ = parts.streams;

  for (ParameterId id = 0; id < layout.parameters.size(); ++id) {
    if (layout.IsFrozen(id)) engine->frozen_.emplace_back(id, parts.parameters[id]);
  }
  TP_RETURN_IF_ERROR(engine->CheckFrozen());

  CacheSetup setup;
  setup.layout = &engine->layout_;
  setup.rank = options.rank;
  setup.service = parts.service;
  for (Collective* group : parts.groups)
    setup.groups.push_back(group != nullptr && group->world() > 1 ? group : nullptr);
  setup.clock = parts.clock;
  setup.options = options.cache;
  setup.policies = std::move(parts.policies);
  setup.streams = parts.streams;
  setup.limit = std::move(parts.limit);
  TP_ASSIGN_OR_RETURN(engine->cache_, ParameterCache::Create(std::move(setup)));

  std::vector<uint64_t> chunk_bytes;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk)
    chunk_bytes.push_back(layout.ChunkBytes(chunk));
  std::vector<BoundParameter> places;
  for (ParameterId id = 0; id < layout.parameters.size(); ++id)
    places.push_back({layout.parameters[id].chunk, layout.ByteBegin(id)});

  Status bound;
  TP_RETURN_IF_ERROR(CatchTorch([&] {
    auto made = StorageBinding::Bind(chunk_bytes, parts.parameters, places);
    made.ok() ? void(engine->binding_ = std::move(made).value()) : void(bound = made.status());
  }));
  TP_RETURN_IF_ERROR(bound);

  engine->operators_ = std::make_unique<OperatorHook>(engine->cache_.get(), engine->binding_.get());
  engine->ListenForTrace();
  engine->gradients_ = std::make_unique<GradientHooks>(
      engine->cache_.get(), engine->operators_.get(), std::move(parts.parameters), parts.gradients);
  if (parts.sink) engine->gradients_->SetSink(std::move(parts.sink));
  return engine;
}

void TrainingEngine::ListenForTrace() {
  if (trace_ == nullptr) return;
  OperatorTrace* told = trace_->operators();
  operators_->SetListener({.begins = [told](const char* name) { told->Begin(name); },
                           .ends = [told] { told->End(); },
                           .uses =
                               [told, this](ParameterId parameter, ChunkId chunk) {
                                 told->Uses(layout_.parameters[parameter].name, chunk);
                               }});
}

Status TrainingEngine::CheckFrozen() const {
  for (const auto& [id, tensor] : frozen_) {
    if (!tensor.requires_grad()) continue;
    return Status(ErrorId::kUsageError,
                  "the frozen parameter " + layout_.parameters[id].name + " asks for a gradient")
        .Where("chunk " + std::to_string(layout_.parameters[id].chunk))
        .Why("a frozen parameter is read by all jobs over its base, and written by none")
        .Fix(
            "call requires_grad_(false) on it before the engine is made, or leave it out of the "
            "frozen ones to train it");
  }

  return {};
}

Status TrainingEngine::LoadWeights(const WeightSource& source) {
  return LoadStates(source, nullptr, {});
}

Status TrainingEngine::LoadStates(const WeightSource& source, const MomentSource& moments,
                                  std::span<const uint32_t> planes) {
  WeightPut put(&layout_, options_.rank, service_, streams_);
  std::vector<float> values;
  for (ParameterId id = 0; id < layout_.parameters.size(); ++id) {
    if (!layout_.IsMember(layout_.parameters[id].chunk, options_.rank) || layout_.IsFrozen(id))
      continue;
    values.resize(layout_.parameters[id].element_count);
    const bool narrow = layout_.chunks[layout_.parameters[id].chunk].dtype != DType::kF32;
    for (const uint32_t plane : planes) {
      // Chunks in fp32 keep fp32 moments, which have no scales, also in a job of 8-bit moments.
      if (plane >= kScalePlanesFrom && !narrow) continue;
      TP_RETURN_IF_ERROR(moments(id, plane, values));
      TP_RETURN_IF_ERROR(put.PutMoment(id, plane, values.data()));
    }

    TP_RETURN_IF_ERROR(source(id, values));
    TP_RETURN_IF_ERROR(put.Put(id, values.data()));
  }
  return put.Finish();
}

Status TrainingEngine::Guarded(const std::function<void()>& body) {
  const BackwardOnThisThread one_thread;
  operators_->Install();
  Status thrown = CatchTorch(body);
  operators_->Remove();
  operators_->CheckThreads();

  if (!operators_->status().ok()) {
    gradients_->DropAll();
    return operators_->status();
  }
  if (!thrown.ok()) operators_->Latch(thrown);
  return thrown;
}

Status TrainingEngine::RunMicroBatch(Version version, uint32_t micro_batch,
                                     const LossFunction& loss, double gradient_scale) {
  if (Status frozen = CheckFrozen(); !frozen.ok()) operators_->Latch(std::move(frozen));
  TP_RETURN_IF_ERROR(operators_->status());
  if (micro_batch == 0) TP_RETURN_IF_ERROR(cache_->BeginPass(PassKind::kTrain, version));
  TP_RETURN_IF_ERROR(Guarded([&] {
    Computes("forward " + std::to_string(micro_batch));
    const at::Tensor result = loss();
    losses_.push_back(result.detach());
    // After a failed forward the loss is zeros: do not differentiate.
    if (!operators_->status().ok()) return;
    TP_POINT("trainer.forward_done");
    Computes("backward " + std::to_string(micro_batch));
    (result * gradient_scale).backward();
    Computes("");
    TP_POINT("trainer.backward_done");
  }));
  return gradients_->FinishBackward(micro_batch);
}

Status TrainingEngine::RunWhole(Version version, const WholeStep& step) {
  if (Status frozen = CheckFrozen(); !frozen.ok()) operators_->Latch(std::move(frozen));
  TP_RETURN_IF_ERROR(operators_->status());
  TP_RETURN_IF_ERROR(cache_->BeginPass(PassKind::kTrain, version));

  TP_RETURN_IF_ERROR(Guarded([&] {
    Status done = step(&losses_);
    if (!done.ok()) operators_->Latch(std::move(done));
    Computes("");
  }));
  if (cache_->trace_only()) return gradients_->FinishBackward(0);  // reports the order's need
  return operators_->status();
}

Result<std::vector<double>> TrainingEngine::TakeLosses() {
  std::vector<double> values;
  // LibTorch's own wait does not poll, so the loss of a peer would not end it.
  TP_RETURN_IF_ERROR(cache_->AwaitOperators());
  TP_RETURN_IF_ERROR(CatchTorch([&] {
    const torch::NoGradGuard no_grad;
    if (losses_.empty()) return;
    const at::Tensor all =
        at::stack(losses_).to(c10::Device(c10::DeviceType::CPU), at::kDouble).contiguous();
    values.assign(all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel());
  }));
  losses_.clear();
  return values;
}

Result<double> TrainingEngine::TrainMicroBatch(Version version, uint32_t micro_batch,
                                               const LossFunction& loss, double gradient_scale) {
  losses_.clear();
  TP_RETURN_IF_ERROR(RunMicroBatch(version, micro_batch, loss, gradient_scale));
  TP_ASSIGN_OR_RETURN(const std::vector<double> values, TakeLosses());
  return values.front();
}

Result<client::Outcome> TrainingEngine::EndStep(const client::StepEnd& end,
                                                const std::function<Status()>& before) {
  planned_traffic_ = cache_->PlannedTraffic();
  if (!planned_traffic_.empty()) {
    // Each rank of a group sends all shards but its own.
    for (size_t group = 0; group < options_.sum_bytes.size(); ++group) {
      planned_traffic_[group].handed_in += options_.sum_bytes[group];
      planned_traffic_[group].scattered +=
          options_.sum_bytes[group] * (layout_.data_groups[group].size() - 1);
    }
  }

  TP_RETURN_IF_ERROR(cache_->FinishStep());
  if (before) TP_RETURN_IF_ERROR(before());
  TP_ASSIGN_OR_RETURN(const client::Ticket ticket, service_->StartEndStep(end));
  return service_->Wait(ticket);
}

bool TrainingEngine::RouteUnits(const UnitUses& uses) {
  const bool leaves_out = cache_->RouteUnits(uses);
  operators_->ApplyMoves();
  return leaves_out;
}

void TrainingEngine::PassUnitBy(uint32_t unit) {
  Status passed = cache_->PassBy(unit);
  operators_->ApplyMoves();
  if (!passed.ok()) operators_->Latch(std::move(passed));
}

void TrainingEngine::Foresee(AccessSchedule order, uint64_t others) {
  cache_->ExpectOthers(others);
  if (SmallestRcache(order, EvictableMask(layout_)) <= cache_->blocks())
    cache_->Declare(PassKind::kTrain, std::move(order));
}

OpenSteps* TrainingEngine::Open(Version sealed) {
  open_ = std::make_unique<OpenSteps>(
      OpenParts{service_, cache_.get(), binding_.get(), operators_.get(), gradients_.get()},
      layout_, options_.micro_batches, sealed);
  return open_.get();
}

// Called when an evaluation finds the rCache too small: traces a training step as well, which needs
// more, so that the size in the error is enough for both.
Status TrainingEngine::TraceTraining(const LossFunction& loss) {
  cache_->BeginDryTraining();
  TP_RETURN_IF_ERROR(Guarded([&] { loss().backward(); }));
  return gradients_->FinishBackward(0);
}

Result<double> TrainingEngine::Evaluate(Version version, const LossFunction& loss) {
  TP_RETURN_IF_ERROR(cache_->BeginPass(PassKind::kEvaluation, version));
  TP_RETURN_IF_ERROR(Guarded([&] {
    const torch::NoGradGuard no_grad;
    losses_.assign(1, loss().detach());
  }));

  if (cache_->trace_only()) {
    losses_.clear();
    return TraceTraining(loss);
  }
  TP_ASSIGN_OR_RETURN(const std::vector<double> values, TakeLosses());
  TP_RETURN_IF_ERROR(cache_->AwaitTransfers());
  return values.front();
}

}  // namespace tidepool::trainer

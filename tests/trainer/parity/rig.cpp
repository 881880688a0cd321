#include "tests/trainer/parity/rig.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "base/random.h"
#include "base/formats/safetensors.h"
#include "client/job_spec.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"
#include "tests/trainer/parity/callers_backward.h"
#include "tests/trainer/parity/rig_batches.h"
#include "tests/trainer/parity/served_ranks.h"
#include "trainer/data/corpus.h"
#include "trainer/data/batch_cursor.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/torch_errors.h"
#include "trainer/model/gpt.h"
#include "trainer/model/gpt_init.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/run/run_plan.h"
#include "trainer/run/expert_mover.h"
#include "trainer/run/run_session.h"

namespace tidepool::trainer {
namespace {

std::shared_ptr<const std::string> Text() {
  static const auto text = [] {
    SplitMix64 random(7);
    auto made = std::make_shared<std::string>();
    for (int word = 0; word < 4000; ++word) {
      for (uint64_t n = 2 + random.Below(5); n > 0; --n)
        made->push_back(static_cast<char>('a' + random.Below(12)));
      made->push_back(' ');
    }
    return std::shared_ptr<const std::string>(made);
  }();
  return text;
}

}  // namespace

BatchCursor CursorOf(const RigOptions& options, uint32_t rank, uint32_t world) {
  BatchShape shape;
  shape.sequences = options.run.data.batch;
  shape.tokens = options.run.data.context;
  shape.rank = rank;
  shape.world = world;
  shape.seed = options.run.model.seed;
  return BatchCursor::Make(TokenSource(Text()), shape).value();
}

at::Tensor TokensOf(const std::vector<int64_t>& tokens, const Batch& batch) {
  return torch::tensor(tokens, torch::kInt64)
      .view({static_cast<int64_t>(batch.sequences), static_cast<int64_t>(batch.tokens)});
}

namespace {

at::ScalarType TorchType(const std::string& dtype) {
  return dtype == "fp32" ? torch::kFloat32 : dtype == "bf16" ? torch::kBFloat16 : torch::kFloat16;
}

optim::ScheduleSpec ScheduleOf(const RunOptions& run) {
  optim::ScheduleSpec schedule;
  schedule.kind = optim::ScheduleFromName(run.training.schedule).value();
  schedule.base_lr = run.training.learning_rate;
  schedule.min_lr = run.training.min_learning_rate;
  schedule.warmup_steps = run.training.warmup_steps;
  schedule.total_steps = run.training.steps;
  return schedule;
}

optim::LossScaler ScalerOf(const RigOptions& options) {
  optim::LossScalerSpec spec;
  spec.initial_scale = options.first_loss_scale;
  return optim::LossScaler(spec);
}

// One rank of a run through the server.
class RigRank {
 public:
  RigRank(const RigOptions& options, const ServedPlace& at, RigResult* result)
      : options_(options),
        at_(at),
        place_(at_.place),
        result_(result),
        scaler_(ScalerOf(options)) {}

  Status Run() {
    at::set_num_threads(1);
    TP_RETURN_IF_ERROR(Build());
    if (plan_.base != nullptr) TP_RETURN_IF_ERROR(session_->ProvideFrozen(ReadBase()).status());
    TP_RETURN_IF_ERROR(engine_->LoadWeights([this](ParameterId id, std::span<float> values) {
      InitGptParameter(plan_.layout.parameters[id].name, plan_.shape, options_.run.model.seed, 0,
                       values);
      return Status();
    }));
    if (options_.open_steps) Open();

    BatchCursor cursor = CursorOf(options_, place_.rank, place_.world);
    if (options_.evaluate_first) TP_RETURN_IF_ERROR(Evaluate());
    for (uint64_t step = 1; step <= options_.run.training.steps; ++step)
      TP_RETURN_IF_ERROR(Step(step, &cursor));
    if (place_.rank == 0) NoteOrder();
    if (place_.rank == 0) TP_RETURN_IF_ERROR(Save());
    if (place_.rank == 0 && plan_.base != nullptr) TP_RETURN_IF_ERROR(CompareBase());
    return session_->Close();
  }

 private:
  client::ReadFrozen ReadBase() const {
    return [this](size_t index, uint64_t begin, std::span<std::byte> bytes) {
      return plan_.base->Read(index, begin, bytes);
    };
  }

  // The rCache is not used any more.
  Status CompareBase() {
    result_->base_unchanged = true;
    for (size_t index = 0; index < plan_.spec.frozen.size(); ++index) {
      const uint64_t elements = plan_.spec.frozen[index].elements;
      const auto chunk = static_cast<ChunkId>(plan_.spec.chunks.size() + index);
      TP_ASSIGN_OR_RETURN(const client::Ticket ticket,
                          session_->service()->StartFetch({chunk, 0, elements, 0}, version_));
      TP_RETURN_IF_ERROR(session_->service()->Wait(ticket).status());
      std::vector<std::byte> should(elements * BytesOf(plan_.layout.dtype));
      TP_RETURN_IF_ERROR(plan_.base->Read(index, 0, should));
      const std::byte* is = session_->service()->attachment().rcache;
      result_->base_unchanged =
          result_->base_unchanged && std::equal(should.begin(), should.end(), is);
    }
    return {};
  }

  Status Build() {
    TP_ASSIGN_OR_RETURN(
        plan_, MakeRunPlan(options_.shape, options_.run, place_.world, place_.rank, "parity"));
    if (plan_.lora.on()) TP_RETURN_IF_ERROR(NameFrozenChunks(&plan_));
    SessionTask task{.server = options_.run.server,
                     .job = options_.run.job,
                     .spec = plan_.spec,
                     .groups = plan_.layout.data_groups,
                     .expert_groups = plan_.expert_groups,
                     .routes = HasExperts(plan_.shape)};
    TP_ASSIGN_OR_RETURN(session_, at_.Open(std::move(task)));
    model_ = std::make_unique<Gpt>(
        plan_.shape, torch::TensorOptions().dtype(TorchType(options_.run.model.dtype)), plan_.lora,
        CountedExchange());
    if (options_.corrupted_rank == place_.rank) Corrupt();
    model_->SetCheckpointing(options_.run.model.activation_checkpointing);
    model_->SetVocabTiles(options_.run.model.vocab_tiles);
    const auto named = model_->named_parameters();
    std::vector<at::Tensor> tensors;
    for (const ParameterPlace& place : plan_.layout.parameters)
      tensors.push_back(named[place.name]);
    EngineOptions engine;
    engine.rank = place_.rank;
    engine.micro_batches = options_.run.training.micro_batches;
    engine.cache.prefetch_depth = options_.run.memory.prefetch ? 2 : 0;
    engine.cache.seed = options_.run.model.seed;
    engine.cache.exchange = plan_.exchange;
    engine.cache.leaves_out = options_.leaves_out;
    engine.cache.separate_while_recording = options_.separate_while_recording;
    EngineParts parts{session_->service(), session_->groups(), tensors, &clock_};
    if (options_.open_steps) parts.gradients = GradientTeller::kCaller;
    TP_ASSIGN_OR_RETURN(engine_, TrainingEngine::Create(plan_.layout, engine, std::move(parts)));
    return {};
  }

  // Each gradient of this rank is another one before it leaves the rank.
  void Corrupt() {
    for (const at::Tensor& parameter : model_->parameters())
      parameter.register_hook([](const at::Tensor& gradient) { return gradient + 1; });
  }

  // Counts the experts that blocks call used.
  TokenExchange CountedExchange() {
    const TokenExchange real = ExchangeOfExperts(
        {.plan = &plan_, .session = session_.get(), .clock = &clock_, .engine = &engine_});
    if (!real.uses().tell) return real;
    ExpertUses uses = real.uses();
    uses.tell = [this, tell = uses.tell](const std::vector<uint32_t>& units, const Used& used) {
      used_now_ += static_cast<uint64_t>(std::count(used.here.begin(), used.here.end(), true));
      return tell(units, used);
    };
    return real.With(std::move(uses));
  }

  void Open() {
    on_this_thread_ = std::make_unique<CallersBackward>();
    steps_ = engine_->Open(version_);
    const auto named = model_->named_parameters();
    for (ParameterId id = 0; id < plan_.layout.parameters.size(); ++id)
      TellArrivals(named[plan_.layout.parameters[id].name], id, steps_);
  }

  at::Tensor Loss(const Batch& batch) const {
    return model_->Loss(TokensOf(batch.inputs, batch), TokensOf(batch.targets, batch));
  }

  Status Evaluate() {
    BatchCursor cursor = CursorOf(options_, place_.rank, place_.world);
    TP_ASSIGN_OR_RETURN(const Batch batch, cursor.Next());
    if (steps_ == nullptr) return engine_->Evaluate(version_, [&] { return Loss(batch); }).status();

    TP_RETURN_IF_ERROR(steps_->BeginForward(/*training=*/false));
    TP_RETURN_IF_ERROR(CatchTorch([&] {
      const torch::NoGradGuard no_grad;
      Loss(batch);
    }));
    return steps_->Check();
  }

  // Returns the loss.
  Result<double> MicroBatch(uint32_t micro, const Batch& batch, double factor) {
    if (steps_ == nullptr)
      return engine_->TrainMicroBatch(
          version_, micro, [&] { return Loss(batch); }, factor);

    double value = 0;
    TP_RETURN_IF_ERROR(CatchTorch([&] {
      const at::Tensor loss = Loss(batch);
      (loss * factor).backward();
      value = loss.item<double>();
    }));
    TP_RETURN_IF_ERROR(steps_->Check());
    return value;
  }

  Status Step(uint64_t step, BatchCursor* cursor) {
    const bool scaling = options_.run.model.dtype == "fp16";
    const double scale = scaling ? scaler_.scale() : 1;
    const CacheCounters before = engine_->cache().counters();
    double loss = 0;
    for (uint32_t micro = 0; micro < options_.run.training.micro_batches; ++micro) {
      TP_ASSIGN_OR_RETURN(const Batch batch, cursor->Next());
      TP_ASSIGN_OR_RETURN(
          const double value,
          MicroBatch(micro, batch, scale / (options_.run.training.micro_batches * place_.world)));
      loss += value / options_.run.training.micro_batches;
    }
    client::StepEnd end;
    end.version = version_;
    end.learning_rate = static_cast<float>(optim::LearningRateAt(ScheduleOf(options_.run), step));
    end.loss_scale = static_cast<float>(scale);
    end.data_cursor = cursor->position();
    TP_ASSIGN_OR_RETURN(const client::Outcome sealed,
                        steps_ != nullptr ? steps_->EndStep(end) : engine_->EndStep(end));
    version_ = sealed.version;
    if (scaling) scaler_.Update(!sealed.skipped);
    TP_RETURN_IF_ERROR(session_->world()->SumDoubles(&loss, 1));
    if (place_.rank == 0) Note(loss / place_.world, sealed, before);
    return {};
  }

  void Note(double loss, const client::Outcome& sealed, const CacheCounters& before) {
    const CacheCounters now = engine_->cache().counters();
    result_->losses.push_back(loss);
    result_->grad_norms.push_back(sealed.grad_norm);
    result_->skipped.push_back(sealed.skipped);
    result_->used_experts.push_back(std::exchange(used_now_, 0));
    result_->zeros.push_back(now.zeros - before.zeros);
    const GroupTraffic planned = SumOf(engine_->planned_traffic());
    result_->planned.push_back({planned.fetched, planned.handed_in});
    result_->planned_groups.push_back(engine_->planned_traffic());
    result_->moved_groups.push_back(Difference(now.traffic, before.traffic));
    result_->fetches.push_back(now.misses + now.prefetches - before.misses - before.prefetches);
    result_->moved.push_back({now.bytes_h2d - before.bytes_h2d, now.bytes_d2h - before.bytes_d2h});
  }

  void NoteOrder() {
    result_->order = engine_->cache().schedule(PassKind::kTrain);
    result_->evictable = EvictableMask(plan_.layout);
    result_->blocks = engine_->cache().blocks();
    result_->layout = plan_.layout;
  }

  Status Save() {
    const UniqueFd directory(open(at_.directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    TP_RETURN_IF_ERROR(
        session_->service()->SaveWeights(directory.get(), "weights.safetensors", version_));
    result_->weights = ReadWeights(at_.directory + "/weights.safetensors");
    return {};
  }

  const RigOptions& options_;
  const ServedPlace at_;
  const RankPlace& place_;
  RigResult* const result_;
  SteadyClock clock_;
  RunPlan plan_;
  std::unique_ptr<RunSession> session_;
  std::unique_ptr<Gpt> model_;
  std::unique_ptr<TrainingEngine> engine_;
  // With open_steps.
  std::unique_ptr<CallersBackward> on_this_thread_;
  OpenSteps* steps_ = nullptr;
  uint64_t used_now_ = 0;
  optim::LossScaler scaler_;
  Version version_ = 0;
};

}  // namespace

GptShape DeepShape() {
  return {.name = "deep", .vocab = 256, .context = 16, .layers = 8, .heads = 2, .hidden = 32};
}

RigOptions DefaultRig() {
  RigOptions options;
  options.run.training.steps = 30;
  options.run.data.batch = 6;
  options.run.data.context = 16;
  options.run.memory.rcache = "50%";
  options.run.memory.chunk_size = "16KiB";
  options.run.training.learning_rate = 3e-3f;
  options.run.training.min_learning_rate = 3e-4f;
  options.run.training.warmup_steps = 5;
  options.run.optimizer.clip = 0.7f;
  return options;
}

void WriteBase(const std::string& path, const RigOptions& options) {
  SafetensorsHeader header;
  std::vector<float> data;
  for (const ParameterNote& note : GptParameters(options.shape)) {
    header.tensors.push_back({.name = note.name, .dtype = "F32", .shape = note.dims});
    const size_t at = data.size();
    data.resize(
        at + std::accumulate(note.dims.begin(), note.dims.end(), size_t{1}, std::multiplies<>()));
    InitGptParameter(note.name, options.shape, options.run.model.seed, 0,
                     std::span(data).subspan(at));
  }
  std::ofstream file(path, std::ios::binary);
  file << EncodeSafetensorsHeader(&header).value();
  file.write(reinterpret_cast<const char*>(data.data()),
             static_cast<std::streamsize>(data.size() * sizeof(float)));
}

RigResult TrainThroughServer(const RigOptions& options) {
  Result<RigResult> result = TryThroughServer(options);
  EXPECT_TRUE(result.ok()) << result.status().Format();
  return result.ok() ? std::move(result).value() : RigResult();
}

Result<RigResult> TryThroughServer(const RigOptions& options) {
  RigResult result;
  const ServerChoice choice{
      .adam_threads = options.adam_threads, .isa = options.isa, .tuning = options.tuning};
  TP_RETURN_IF_ERROR(RunServedRanks(options.world, choice, [&](const ServedPlace& at) {
    return RigRank(options, at, &result).Run();
  }));
  return result;
}

namespace {

// Everything resident in plain LibTorch. 16-bit models keep fp32 master weights beside the model,
// as mixed-precision training does.
class PlainRun {
 public:
  explicit PlainRun(const RigOptions& options)
      : options_(options),
        lora_(LoraOf(options)),
        model_(options.shape, torch::TensorOptions().dtype(TorchType(options.run.model.dtype)),
               lora_),
        scaler_(ScalerOf(options)) {
    InitGpt(&model_, options.run.model.seed);
    std::vector<at::Tensor> decay, no_decay;
    for (const ParameterNote& note : GptParameters(options.shape, lora_)) {
      if (note.frozen) continue;
      at::Tensor parameter = model_.named_parameters()[note.name];
      at::Tensor master = torch::empty(parameter.sizes(), torch::kFloat32);
      InitGptParameter(note.name, options.shape, options.run.model.seed, 0,
                       {master.mutable_data_ptr<float>(), static_cast<size_t>(master.numel())});
      pairs_.push_back({note.name, parameter, master.requires_grad_(true)});
      (note.optimizer_group == kDecayGroup ? decay : no_decay).push_back(master);
    }
    const auto adamw = [&](double weight_decay) {
      return std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(options.run.training.learning_rate)
              .betas({options.run.optimizer.beta1, options.run.optimizer.beta2})
              .eps(options.run.optimizer.eps)
              .weight_decay(weight_decay));
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(decay, adamw(options.run.optimizer.weight_decay));
    groups.emplace_back(no_decay, adamw(0));
    optimizer_ = std::make_unique<torch::optim::AdamW>(groups);
  }

  RigResult Run() {
    BatchCursor cursor = CursorOf(options_, 0, 1);
    for (uint64_t step = 1; step <= options_.run.training.steps; ++step) Step(step, &cursor);
    for (const Pair& pair : pairs_) {
      const float* values = pair.master.const_data_ptr<float>();
      result_.weights[pair.name].assign(values, values + pair.master.numel());
    }
    return result_;
  }

 private:
  struct Pair {
    std::string name;
    at::Tensor parameter, master;
  };

  void Step(uint64_t step, BatchCursor* cursor) {
    const bool scaling = options_.run.model.dtype == "fp16";
    const double scale = scaling ? scaler_.scale() : 1;
    double loss = 0;
    std::vector<at::Tensor> masters;
    for (Pair& pair : pairs_) pair.master.mutable_grad() = torch::zeros_like(pair.master);
    for (uint32_t micro = 0; micro < options_.run.training.micro_batches; ++micro) {
      const Batch batch = cursor->Next().value();
      const at::Tensor value =
          model_.Loss(TokensOf(batch.inputs, batch), TokensOf(batch.targets, batch));
      loss += value.item<double>() / options_.run.training.micro_batches;
      (value * (scale / options_.run.training.micro_batches)).backward();
      for (Pair& pair : pairs_) {
        pair.master.mutable_grad().add_(pair.parameter.grad().to(torch::kFloat32));
        pair.parameter.mutable_grad().reset();
      }
    }
    bool finite = true;
    for (Pair& pair : pairs_) {
      pair.master.mutable_grad().mul_(1 / scale);
      finite = finite && pair.master.grad().isfinite().all().item<bool>();
      masters.push_back(pair.master);
    }
    const double norm =
        options_.run.optimizer.clip > 0 && finite
            ? torch::nn::utils::clip_grad_norm_(masters, options_.run.optimizer.clip)
            : 0;
    if (finite) Update(step);
    if (scaling) scaler_.Update(finite);
    result_.losses.push_back(loss);
    result_.grad_norms.push_back(norm);
    result_.skipped.push_back(!finite);
  }

  void Update(uint64_t step) {
    const double lr = optim::LearningRateAt(ScheduleOf(options_.run), step);
    for (auto& group : optimizer_->param_groups())
      static_cast<torch::optim::AdamWOptions&>(group.options()).lr(static_cast<float>(lr));
    optimizer_->step();
    const torch::NoGradGuard no_grad;
    for (Pair& pair : pairs_) pair.parameter.copy_(pair.master);
  }

  static LoraShape LoraOf(const RigOptions& options) {
    const RunOptions& run = options.run;
    return run.adapters.rank == 0 ? LoraShape()
                                  : MakeLoraShape(options.shape, run.adapters.rank,
                                                  run.adapters.alpha, run.adapters.targets)
                                        .value();
  }

  const RigOptions& options_;
  const LoraShape lora_;
  Gpt model_;
  std::vector<Pair> pairs_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  optim::LossScaler scaler_;
  RigResult result_;
};

}  // namespace

RigResult TrainPlain(const RigOptions& options) {
  at::set_num_threads(1);
  return PlainRun(options).Run();
}

double LargestDifference(const RigResult& a, const RigResult& b) {
  EXPECT_FALSE(a.weights.empty());
  EXPECT_EQ(a.weights.size(), b.weights.size());
  double largest = 0;
  for (const auto& [name, values] : a.weights) {
    const auto other = b.weights.find(name);
    if (other == b.weights.end() || other->second.size() != values.size()) {
      ADD_FAILURE() << name << " is missing or has another size";
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(values[i]) - other->second[i]));
  }
  return largest;
}

bool SameBits(const RigResult& a, const RigResult& b) {
  EXPECT_FALSE(a.weights.empty());
  if (a.weights.size() != b.weights.size()) return false;
  for (const auto& [name, values] : a.weights) {
    const auto other = b.weights.find(name);
    if (other == b.weights.end() || other->second.size() != values.size()) return false;
    if (std::memcmp(values.data(), other->second.data(), values.size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

}  // namespace tidepool::trainer

#include "trainer/run/run_model.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "base/system/give_back.h"
#include "base/units.h"
#include "trainer/advice/settle_rcache.h"
#include "trainer/checkpoint/loaded_checkpoint.h"
#include "trainer/model/activation_store.h"
#include "trainer/model/gpt_init.h"
#include "trainer/model/tiles/tile_places.h"
#include "trainer/run/expert_mover.h"
#include "trainer/plan/use_trace.h"
#include "trainer/profile/host_bytes.h"
#include "trainer/threads/in_parts.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kInitPart = 1 << 16;  // elements: the smallest part worth a thread

// The module's tensors, by ParameterId of the layout.
Result<std::vector<at::Tensor>> TensorsOf(const Gpt& model, const ChunkLayout& layout) {
  std::unordered_map<std::string, at::Tensor> by_name;
  for (const auto& item : model.named_parameters()) by_name.emplace(item.key(), item.value());

  std::vector<at::Tensor> tensors;
  for (const ParameterPlace& place : layout.parameters) {
    const auto found = by_name.find(place.name);
    if (found == by_name.end())
      return Status(ErrorId::kInternal, "the model has no parameter " + place.name);
    tensors.push_back(found->second);
  }
  return tensors;
}

// Each number becomes the largest of all ranks: the sum of a row a rank, of which all others are
// zeros. Bytes are integers below 2^53, so their sums are exact.
Status MostOfRanks(Collective* world, std::vector<uint64_t>* numbers) {
  const size_t count = numbers->size(), ranks = world->world();
  if (ranks == 1) return {};
  std::vector<double> rows(ranks * count, 0);
  std::copy(numbers->begin(), numbers->end(),
            rows.begin() + static_cast<std::ptrdiff_t>(world->rank() * count));
  TP_RETURN_IF_ERROR(world->SumDoubles(rows.data(), rows.size()));
  for (size_t i = 0; i < rows.size(); ++i)
    (*numbers)[i % count] = std::max((*numbers)[i % count], static_cast<uint64_t>(rows[i]));
  return {};
}

// Counts LibTorch's tensors from here on. The model has none of its own.
Result<MemoryLimit> LimitOf(const MemoryOptions& memory, Collective* world) {
  MemoryLimit limit;
  if (!memory.dynamic_rcache) return limit;
  TP_ASSIGN_OR_RETURN(limit.bytes, ParseSize(memory.device_memory));
  HostBytes::Count();
  limit.take_peak = &HostBytes::TakePeak;
  limit.release = &GiveBackPages;
  limit.most_of_ranks = [world](std::vector<uint64_t>* numbers) {
    return MostOfRanks(world, numbers);
  };
  return limit;
}

}  // namespace

Result<std::unique_ptr<RunModel>> RunModel::Make(const RunModelParts& parts) {
  std::unique_ptr<RunModel> made(new RunModel(parts));
  const RunOptions& options = parts.options;
  if (parts.device->is_gpu() && !parts.plan.expert_groups.empty()) {
    return Status(ErrorId::kUsageError, "ranks share experts on the host alone so far")
        .Where("--moe " + options.model.moe)
        .Fix("leave ep out, so that each rank has all experts, or give --device cpu");
  }

  // The module's own memory is never touched: LibTorch at most reserves it, and the engine releases
  // it when it places the storages.
  made->model_ = std::make_unique<Gpt>(
      parts.plan.shape, parts.device->MakerOf(parts.plan.layout.dtype), parts.plan.lora,
      ExchangeOfExperts({.plan = &parts.plan,
                         .session = parts.session,
                         .clock = parts.clock,
                         .engine = &made->engine_}));

  made->model_->SetCheckpointing(
      options.model.activation_checkpointing,
      options.model.offload_activations ? std::make_shared<ActivationStore>() : nullptr);
  made->model_->SetVocabTiles(options.model.vocab_tiles);
  TP_RETURN_IF_ERROR(made->MakeEngine());
  if (parts.foresees)
    TP_RETURN_IF_ERROR(parts.plan.stages ? made->ForeseeStages() : made->ForeseeSteps());
  return made;
}

Status RunModel::MakeEngine() {
  const RunOptions& options = parts_.options;
  RunSession* session = parts_.session;
  EngineOptions engine;
  engine.rank = session->place().rank;
  engine.micro_batches = options.training.micro_batches;
  if (!options.memory.prefetch) engine.cache.prefetch_depth = 0;
  // The model declares which parameters are used more than once.
  engine.cache.separate_while_recording = false;
  engine.cache.seed = options.model.seed;
  engine.cache.exchange = parts_.plan.exchange;

  TP_ASSIGN_OR_RETURN(std::vector<at::Tensor> tensors, TensorsOf(*model_, parts_.plan.layout));
  EngineParts parts{.service = session->service(),
                    .groups = session->groups(),
                    .parameters = std::move(tensors),
                    .clock = parts_.clock};
  parts.streams = parts_.device->streams();
  TP_ASSIGN_OR_RETURN(parts.limit, LimitOf(options.memory, session->world()));

  if (!options.output.trace_file.empty() && engine.rank == 0) {
    trace_ = std::make_unique<RunTrace>(parts_.clock, parts_.device->Timer(), parts.service,
                                        parts.groups);
    parts.service = trace_->service();
    parts.groups = trace_->groups();
    parts.trace = trace_->step();
    trace_->step()->SetPlan(options.pipeline.planned);
  }

  if (parts_.plan.stages) return MakeStagedEngine(std::move(engine), std::move(parts));
  TP_ASSIGN_OR_RETURN(engine_,
                      TrainingEngine::Create(parts_.plan.layout, engine, std::move(parts)));
  return {};
}

Status RunModel::MakeStagedEngine(EngineOptions engine, EngineParts parts) {
  const StagePlan& stages = *parts_.plan.stages;
  engine.cache.tail_bytes = stages.tail_bytes;
  engine.cache.f32_sums = stages.micro_batches > 1;
  engine.sum_bytes = stages.sum_bytes_of_group;
  // rCache memory beyond one stage is for the next stage.
  if (engine.cache.prefetch_depth > 0)
    engine.cache.prefetch_depth = std::max<uint64_t>(
        engine.cache.prefetch_depth, parts_.plan.rcache.blocks - stages.blocks_of_one);

  sums_.emplace(&parts_.plan.layout, &stages);
  if (parts_.plan.layout.world > 1) links_.emplace(&stages, parts_.session->links());
  if (stages.Owns(stages.stages() - 1) && stages.SharesHead()) {
    const at::Tensor& embedding = model_->token_embedding();
    head_ = at::empty(embedding.sizes(), embedding.options()).requires_grad_(true);
    model_->SetHead(head_);
  }

  parts.sink = [this](ParameterId parameter, const at::Tensor& gradient) {
    return sums_->Take(parameter, gradient);
  };
  TP_ASSIGN_OR_RETURN(engine_,
                      TrainingEngine::Create(parts_.plan.layout, engine, std::move(parts)));
  const client::Attachment& slot = parts_.session->service()->attachment();
  sums_->Attach(engine_->open_cache(), slot.rcache + slot.rcache_bytes - stages.tail_bytes);
  return {};
}

Status RunModel::ForeseeStages() {
  const RunPlan& plan = parts_.plan;
  TP_ASSIGN_OR_RETURN(const StepProfile profile, ProfileRun(plan, parts_.options));
  engine_->Foresee(ForeseeUses(profile.trace, plan.layout, parts_.session->place().rank));
  return {};
}

at::Tensor RunModel::RunStage(uint32_t stage, const Batch& batch, const at::Tensor& input) {
  const std::vector<uint32_t>& ends = parts_.plan.stages->cuts.ends;
  const auto tokens = [&](const std::vector<int64_t>& ids) {
    return parts_.device->Tokens(ids, batch.sequences, batch.tokens);
  };
  const at::Tensor hidden = model_->RunBlocks(stage == 0 ? 0 : ends[stage - 1], ends[stage],
                                              stage == 0 ? tokens(batch.inputs) : input);
  return stage + 1 < ends.size() ? hidden : model_->LossBehind(hidden, tokens(batch.targets));
}

StagedWork RunModel::WorkOf(StagedPass* pass) {
  const StagePlan& plan = *parts_.plan.stages;
  StagedWork work{.stages = plan.stages(),
                  .micro_batches = static_cast<uint32_t>(pass->batches.size())};
  work.stage = [this, pass](uint32_t stage, uint32_t micro_batch, const at::Tensor& input) {
    return RunStage(stage, pass->batches[micro_batch], input);
  };
  work.goes_on = [this, pass] { return pass->failed.ok() && engine_->status().ok(); };
  if (links_) AddLinks(pass, &work);
  return work;
}

void RunModel::AddLinks(StagedPass* pass, StagedWork* work) {
  const StagePlan& plan = *parts_.plan.stages;
  work->owns = [&plan](uint32_t stage) { return plan.Owns(stage); };

  work->receive = [this, pass](bool backward, uint32_t stage, uint32_t micro_batch) {
    const Batch& batch = pass->batches[micro_batch];
    at::Tensor tensor =
        at::empty({static_cast<int64_t>(batch.sequences), static_cast<int64_t>(batch.tokens),
                   static_cast<int64_t>(parts_.plan.shape.hidden)},
                  model_->token_embedding().options().requires_grad(false));
    pass->failed = links_->Receive(
        backward ? StageMessage{StageMessage::Kind::kGradient, stage + 1, micro_batch}
                 : StageMessage{StageMessage::Kind::kOutput, stage - 1, micro_batch},
        tensor);
    return tensor;
  };

  work->send = [this](bool backward, uint32_t stage, uint32_t micro_batch,
                      const at::Tensor& tensor) {
    const auto kind = backward ? StageMessage::Kind::kGradient : StageMessage::Kind::kOutput;
    links_->Send({kind, stage, micro_batch}, tensor);
  };
}

StageSizes RunModel::SizesOf(const Batch& batch) const {
  const GptShape& shape = parts_.plan.shape;
  const uint64_t element = BytesOf(parts_.plan.layout.dtype);
  return {.boundary = batch.sequences * batch.tokens * shape.hidden * element,
          .embedding = uint64_t{shape.vocab} * shape.hidden * element};
}

Result<StagedBytes> RunModel::StagedStep(Version version, std::span<const Batch> batches,
                                         double gradient_scale) {
  const StagePlan& plan = *parts_.plan.stages;
  StagedPass pass{batches};
  StagedWork work = WorkOf(&pass);
  head_is_old_ = true;  // a step sends it anew, whatever was sent before
  work.gradient_scale = gradient_scale;

  work.begins = [&](bool backward, uint32_t stage, uint32_t micro_batch) {
    if (backward) sums_->BeginBackward(stage, micro_batch);
    if (backward && stage == 0 && plan.SharesHead()) pass.failed = TakeHeadPart(micro_batch);
    if (trace_ == nullptr) return;
    trace_->step()->Compute((backward ? "backward " : "forward ") + std::to_string(micro_batch) +
                            " of stage " + std::to_string(stage));
  };
  work.went_back = [&](uint32_t stage, uint32_t micro_batch) {
    if (stage + 1 == plan.stages() && head_.defined()) GiveHeadPart(micro_batch);
  };
  work.ended = [&](uint32_t stage) { pass.failed = sums_->EndStage(stage); };

  StagedBytes bytes;
  const uint64_t sent_before = links_ ? links_->sent_bytes() : 0;
  sums_->BeginStep();
  TP_RETURN_IF_ERROR(engine_->RunWhole(version, [&](std::vector<at::Tensor>* losses) {
    pass.failed = ShareHead();
    const StagedResult result = RunStagedStep(work);
    bytes.boundary = result.boundary_bytes;
    losses->insert(losses->end(), result.losses.begin(), result.losses.end());
    return pass.failed.ok() && links_ ? links_->Finish() : pass.failed;
  }));

  head_is_old_ = true;
  if (!links_) return bytes;
  bytes.linked = links_->sent_bytes() - sent_before;
  bytes.linked_theory = SentBytesOf(plan, SizesOf(batches.front()));
  return bytes;
}

at::Tensor RunModel::StagedLoss(const Batch& batch) {
  StagedPass pass{std::span(&batch, 1)};
  const StagedWork work = WorkOf(&pass);
  pass.failed = ShareHead();
  at::Tensor loss = RunStagedForward(work);
  if (pass.failed.ok()) pass.failed = links_->Finish();
  if (!pass.failed.ok()) engine_->Fail(pass.failed);
  return loss.defined() ? loss : at::zeros({});
}

// The first stage's rank copies the embedding in every pass, so that each pass has the profiled
// order (trainer/profile/step_profile.cpp).
Status RunModel::ShareHead() {
  const StagePlan& plan = *parts_.plan.stages;
  if (!links_ || !plan.SharesHead()) return {};
  const at::NoGradGuard no_gradients;
  const StageMessage message{.kind = StageMessage::Kind::kHead};
  const bool is_old = std::exchange(head_is_old_, false);
  if (!plan.Owns(0)) return is_old ? links_->Receive(message, head_.detach()) : Status();

  const at::Tensor copy = model_->token_embedding().clone();
  if (is_old) links_->Send(message, copy);
  return {};
}

Status RunModel::TakeHeadPart(uint32_t micro_batch) {
  const std::vector<StageSpan>& spans = parts_.plan.stages->of_parameter;
  const auto at_both_ends = std::find_if(
      spans.begin(), spans.end(), [](const StageSpan& span) { return span.first != span.last; });
  const auto embedding = static_cast<ParameterId>(at_both_ends - spans.begin());
  const at::Tensor part = at::empty(model_->token_embedding().sizes(),
                                    model_->token_embedding().options().requires_grad(false));
  TP_RETURN_IF_ERROR(
      links_->Receive({.kind = StageMessage::Kind::kHeadPart, .micro_batch = micro_batch}, part));
  sums_->TakePart(embedding, micro_batch, part);
  return {};
}

void RunModel::GiveHeadPart(uint32_t micro_batch) {
  links_->Send({.kind = StageMessage::Kind::kHeadPart, .micro_batch = micro_batch}, head_.grad());
  head_.mutable_grad().reset();
}

// Without a profile the first step would evict at random and fetch too late (Elixir v2, section
// 3.1: the order is known before runtime). All ranks make the same profile, so that their
// collectives match.
Status RunModel::ForeseeSteps() {
  const RunPlan& plan = parts_.plan;
  TP_ASSIGN_OR_RETURN(const StepProfile profile, ProfileRun(plan, parts_.options));
  engine_->Foresee(ForeseeOrder(profile.trace, plan.layout, parts_.session->place().rank,
                                parts_.options.training.micro_batches),
                   profile.buffer_bytes + profile.activation_bytes + profile.activation_bytes / 4);
  return {};
}

Status RunModel::LoadCheckpoint(const LoadedCheckpoint& from) {
  const client::JobSpec& spec = parts_.plan.spec;
  const auto read = [&](ParameterId id, uint32_t plane, std::span<float> values) {
    return from.Read(spec, id, plane, values);
  };
  return engine_->LoadStates(
      [&](ParameterId id, std::span<float> values) { return read(id, 0, values); }, read,
      MomentPlanesOf(spec));
}

Status RunModel::LoadWeights() {
  return engine_->LoadWeights([this](ParameterId id, std::span<float> values) {
    const std::string& name = parts_.plan.layout.parameters[id].name;
    const GptShape& shape = parts_.plan.shape;
    if (parts_.plan.from != nullptr) {
      const TilePlace place = PlaceOfTile(name, shape);
      return parts_.plan.from->ReadFrom(place.whole, place.begin, values);
    }
    // A value depends on its position alone, so the number of threads changes no bit.
    const uint64_t seed = parts_.options.model.seed;
    InParts(values.size(), kInitPart, static_cast<uint32_t>(at::get_num_threads()),
            [&](uint64_t begin, uint64_t end) {
              InitGptParameter(name, shape, seed, begin, values.subspan(begin, end - begin));
            });
    return Status();
  });
}

at::Tensor RunModel::Loss(const Batch& batch) {
  if (links_) return StagedLoss(batch);
  const at::Tensor inputs = parts_.device->Tokens(batch.inputs, batch.sequences, batch.tokens);
  return model_->Loss(inputs, parts_.device->Tokens(batch.targets, batch.sequences, batch.tokens));
}

}  // namespace tidepool::trainer

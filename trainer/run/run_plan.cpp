#include "trainer/run/run_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/text/json_writer.h"
#include "base/units.h"
#include "optim/adam_stream.h"
#include "trainer/comm/operation_thread.h"
#include "trainer/comm/staged_collective.h"
#include "trainer/inputs/model_config.h"

namespace tidepool::trainer {
namespace {

std::string Percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * share);
  return text.data();
}

std::string PerParameter(const client::StateBytes& states, uint64_t parameters) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f",
                static_cast<double>(states.total()) / static_cast<double>(parameters));
  return text.data();
}

Result<GptShape> ShapeOfBase(const std::string& base) {
  TP_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(DirectoryOfWeights(base)));
  if (!config.lora.on()) return config.shape;
  return Status(ErrorId::kUsageError, base + " holds adapters, not a whole model")
      .Where("--base " + base)
      .Why("adapters are trained over a whole model")
      .Fix("give the base of those adapters: --base " + config.base);
}

Result<GptShape> ShapeOf(const RunOptions& options) {
  TP_ASSIGN_OR_RETURN(GptShape shape, options.base.empty() ? FindGptPreset(options.preset)
                                                           : ShapeOfBase(options.base));
  if (options.context > shape.context) {
    return Status(ErrorId::kUsageError, "--context " + std::to_string(options.context) +
                                            " is longer than the model's " +
                                            std::to_string(shape.context))
        .Where(options.base.empty() ? "--preset " + shape.name : "--base " + options.base)
        .Fix("give at most --context " + std::to_string(shape.context));
  }
  return shape;
}

Result<LoraShape> LoraOf(const GptShape& shape, const RunOptions& options) {
  if (options.lora_rank > 0)
    return MakeLoraShape(shape, options.lora_rank, options.lora_alpha, options.lora_targets);
  if (options.base.empty()) return LoraShape();
  return Status(ErrorId::kUsageError,
                "--base says what stays as it is, and nothing says what is trained")
      .Where("--base " + options.base)
      .Fix(
          "give --lora-rank N, such as 8, to train adapters over it; a saved model itself is not "
          "trained further");
}

Result<ChunkLayout> LayoutOf(const GptShape& shape, const LoraShape& lora,
                             const RunOptions& options, uint32_t world) {
  const std::vector<ParameterNote> notes = GptParameters(shape, lora);
  LayoutOptions layout;
  TP_ASSIGN_OR_RETURN(layout.dtype, DTypeFromName(options.dtype));
  layout.world = world;
  if (options.chunk_size != "auto") {
    TP_ASSIGN_OR_RETURN(layout.chunk_bytes, ParseSize(options.chunk_size));
  }
  return BuildLayout(notes, layout);
}

Status CheckOptimizer(const RunOptions& options) {
  TP_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(options.dtype));
  const char* why = WhyBad(MakeOptimizerSpec(options), dtype);
  if (why == nullptr) return {};
  return Status(ErrorId::kUsageError, why)
      .Where("--optimizer " + options.optimizer + " --states " + options.states + " --dtype " +
             options.dtype)
      .Fix("correct the flag; states other than fp32 need --dtype bf16");
}

}  // namespace

Result<RunPlan> MakeRunPlan(const RunOptions& options, uint32_t world, Rank rank,
                            const std::string& job) {
  TP_ASSIGN_OR_RETURN(const GptShape shape, ShapeOf(options));
  return MakeRunPlan(shape, options, world, rank, job);
}

Result<RunPlan> MakeRunPlan(const GptShape& shape, const RunOptions& options, uint32_t world,
                            Rank rank, const std::string& job) {
  RunPlan plan;
  plan.shape = shape;
  TP_RETURN_IF_ERROR(CheckOptimizer(options));
  TP_RETURN_IF_ERROR(ParseGpuStatesWish(options.gpu_states).status());
  TP_ASSIGN_OR_RETURN(plan.lora, LoraOf(shape, options));
  TP_ASSIGN_OR_RETURN(plan.layout, LayoutOf(plan.shape, plan.lora, options, world));
  if (!options.base.empty()) {
    TP_ASSIGN_OR_RETURN(FrozenBase base, FrozenBase::Open(WholeModelAt(options.base), plan.layout));
    plan.base = std::make_shared<const FrozenBase>(std::move(base));
  }
  TP_ASSIGN_OR_RETURN(plan.rcache, PlanRcache(plan.layout, rank, options.rcache));
  plan.spec = MakeJobSpec(plan.layout, options, plan.rcache, job);
  plan.memory = EstimateMemory(plan.layout, {.micro_batches = options.micro_batches,
                                             .rcache_bytes = plan.rcache.bytes,
                                             .optimizer = plan.spec.optimizer,
                                             .parts_at_once = kPartsAtOnce,
                                             .staged_at_once = kStagedAtOnce});
  return plan;
}

Status PlaceGpuStates(const RunOptions& options, uint32_t gpus, RunPlan* plan) {
  TP_ASSIGN_OR_RETURN(const GpuStatesWish wish, ParseGpuStatesWish(options.gpu_states));
  TP_ASSIGN_OR_RETURN(plan->gpu_states,
                      PlanGpuStates(wish, plan->layout, plan->spec,
                                    {.gpus = gpus, .why_no_kernel = optim::WhyNoAdam()}));
  plan->spec.states_on_gpu = plan->gpu_states.chunks;
  return {};
}

std::string DescribeGpuStates(const RunPlan& plan) {
  const GpuStatesPlan& on_gpu = plan.gpu_states;
  if (on_gpu.why.empty()) return {};
  if (on_gpu.chunks == 0) return "states    all on the host: " + on_gpu.why + "\n";
  const uint64_t less = client::StateBytesOf(plan.spec).total() -
                        client::HostStateBytesOf(plan.spec, client::kNoSpill).total();
  const std::string first =
      on_gpu.chunks == 1 ? "the first" : "the first " + std::to_string(on_gpu.chunks);
  return "states    those of " + first + " of " + std::to_string(plan.spec.chunks.size()) +
         " chunks on GPUs, up to " + FormatBytes(on_gpu.gpu_bytes) +
         " of each, which memserver takes (two slots a chunk): " + on_gpu.why +
         "; the pool needs " + FormatBytes(less) + " less\n";
}

Status NameFrozenChunks(RunPlan* plan, BaseNames* names) {
  if (!plan->lora.on()) return {};
  if (plan->base == nullptr) {
    return Status(ErrorId::kUsageError,
                  "--lora-rank " + std::to_string(plan->lora.rank) + " without a base")
        .Where("command line of trainer")
        .Why("adapters are trained beside weights that exist")
        .Fix("give --base DIR, which `trainer run --save DIR` wrote");
  }
  TP_ASSIGN_OR_RETURN(const std::vector<ContentHash> chunks,
                      names != nullptr ? names->Chunks() : plan->base->HashChunks());
  for (size_t i = 0; i < chunks.size(); ++i) plan->spec.frozen[i].content = chunks[i];
  return {};
}

std::string DescribePlan(const RunPlan& plan) {
  const MemoryEstimate& m = plan.memory;
  const client::StateBytes states = client::StateBytesOf(plan.spec);
  std::string text;
  const auto line = [&text](const std::string& label, const std::string& value) {
    text += label + std::string(10 - std::min<size_t>(label.size(), 9), ' ') + value + "\n";
  };
  line("model", plan.shape.name + ": " + FormatCount(m.parameters) + " parameters, " +
                    std::to_string(plan.shape.layers) + " layers x " +
                    std::to_string(plan.shape.hidden) + ", " + NameOf(plan.layout.dtype));
  if (plan.lora.on()) {
    line("adapters", FormatCount(m.trained_parameters) + " parameters, of rank " +
                         std::to_string(plan.lora.rank) + " beside " + TargetsText(plan.lora) +
                         "; nothing else is trained");
  }
  line("chunks", std::to_string(plan.layout.chunks.size()) + ", of " +
                     FormatBytes(plan.rcache.block_bytes) + " (padding " +
                     FormatBytes(m.padding_bytes) + " in all); " + plan.layout.choice.reason);
  line("rcache", FormatBytes(plan.rcache.bytes) + " a rank: " + std::to_string(plan.rcache.blocks) +
                     " blocks = " + Percent(plan.rcache.fraction()) +
                     " of the non-resident parameters, beside " +
                     FormatBytes(plan.rcache.resident_bytes) + " always resident (" +
                     Percent(m.resident_share) + " of all)");
  if (plan.choice) text += DescribeChoice(*plan.choice);
  if (plan.layout.world > 1) {
    line("exchange", "none beside the rCache between ranks of one machine; over several machines " +
                         FormatBytes(m.parts_bytes) +
                         " of host memory a rank, and where GPUs exchange through host memory " +
                         FormatBytes(m.staging_bytes) + " more");
  }
  line("optimizer", std::string(NameOf(plan.spec.optimizer.rule)) + ", states " +
                        NameOf(plan.spec.optimizer.states) + ": " +
                        PerParameter(states, m.trained_parameters) +
                        " bytes of the pool a parameter");
  line("host", FormatBytes(states.total()) + " of the pool: master " + FormatBytes(states.master) +
                   ", moments " + FormatBytes(states.momentum + states.variance) +
                   ", 16-bit copy " + FormatBytes(states.param16) + ", gradients " +
                   FormatBytes(states.gradient + states.staging) + ", records " +
                   FormatBytes(states.records));
  if (plan.lora.on()) {
    line("base", FormatBytes(m.frozen) + " of the pool in " +
                     std::to_string(plan.spec.frozen.size()) +
                     " frozen chunks, once for all jobs of yours over it");
  }
  if (client::MaySpill(plan.spec)) {
    line("on NVMe",
         FormatBytes(client::HostStateBytesOf(plan.spec, 0).total()) + " of the pool and " +
             FormatBytes(client::NvmeBytesOf(plan.spec, 0)) +
             " of NVMe (two slots a chunk), where memserver has --nvme and all states spill");
    const uint64_t least = client::LeastHostBytesOf(plan.spec);
    if (least < client::HostStateBytesOf(plan.spec, 0).total()) {
      line("", FormatBytes(least) +
                   " of the pool at least: 16-bit weights are on that NVMe too, and are read in "
                   "each pass");
    }
  }
  line("total", FormatBytes(states.total() + m.frozen + plan.rcache.bytes * plan.layout.world) +
                    " on this node for " + std::to_string(plan.layout.world) +
                    (plan.layout.world == 1 ? " rank" : " ranks") + ", without activations");
  return text;
}

std::string PlanJson(const RunPlan& plan, const GpuEstimate* gpu) {
  const MemoryEstimate& m = plan.memory;
  const client::StateBytes states = client::StateBytesOf(plan.spec);
  JsonWriter json;
  json.BeginObject()
      .Field("preset", plan.shape.name)
      .Field("params", m.parameters)
      .Field("dtype", NameOf(plan.layout.dtype));
  json.Field("ranks", plan.layout.world)
      .Field("chunks", static_cast<uint64_t>(plan.layout.chunks.size()));
  json.Field("chunk_bytes", plan.rcache.block_bytes).Field("padding_bytes", m.padding_bytes);
  if (plan.lora.on()) {
    json.Key("adapters")
        .BeginObject()
        .Field("rank", plan.lora.rank)
        .Field("alpha", plan.lora.alpha);
    json.Field("targets", TargetsText(plan.lora)).Field("params", m.trained_parameters).EndObject();
    json.Key("base").BeginObject().Field("frozen_chunks",
                                         static_cast<uint64_t>(plan.spec.frozen.size()));
    json.Field("frozen_bytes", m.frozen).EndObject();
  }
  json.Key("optimizer").BeginObject().Field("rule", NameOf(plan.spec.optimizer.rule));
  json.Field("states", NameOf(plan.spec.optimizer.states)).EndObject();
  json.Key("pool")
      .BeginObject()
      .Field("master_bytes", states.master)
      .Field("momentum_bytes", states.momentum);
  json.Field("variance_bytes", states.variance)
      .Field("param16_bytes", states.param16)
      .Field("gradient_bytes", states.gradient);
  json.Field("staging_bytes", states.staging)
      .Field("records_bytes", states.records)
      .Field("total_bytes", states.total())
      .EndObject();
  json.Key("rcache")
      .BeginObject()
      .Field("bytes", plan.rcache.bytes)
      .Field("blocks", plan.rcache.blocks);
  json.Field("block_bytes", plan.rcache.block_bytes)
      .Field("resident_bytes", plan.rcache.resident_bytes);
  json.Field("fraction", plan.rcache.fraction())
      .Field("resident_share", m.resident_share)
      .EndObject();
  if (plan.layout.world > 1) {
    json.Key("exchange").BeginObject().Field("several_machines_bytes", m.parts_bytes);
    json.Field("through_host_bytes", m.staging_bytes).EndObject();
  }
  if (plan.choice) {
    json.Key("choice");
    WriteChoice(*plan.choice, &json);
  }
  if (client::MaySpill(plan.spec)) {
    json.Key("states_on_nvme")
        .BeginObject()
        .Field("pool_bytes", RoundUp(client::HostStateBytesOf(plan.spec, 0).total(), kMiB));
    json.Field("nvme_bytes", RoundUp(client::NvmeBytesOf(plan.spec, 0), kMiB));
    json.Field("least_pool_bytes", RoundUp(client::LeastHostBytesOf(plan.spec), kMiB)).EndObject();
  }
  if (plan.gpu_states.chunks > 0) {
    json.Key("states_on_gpu")
        .BeginObject()
        .Field("chunks", plan.gpu_states.chunks)
        .Field("gpu_bytes", plan.gpu_states.gpu_bytes);
    json.Field(
            "pool_bytes",
            RoundUp(client::HostStateBytesOf(plan.spec, client::kNoSpill).total() + m.frozen, kMiB))
        .EndObject();
  }
  if (gpu != nullptr) {
    json.Key("gpu").BeginObject().Field("rank_bytes", gpu->rank_bytes).Field("ranks", gpu->sharers);
    if (gpu->states_bytes > 0) json.Field("states_bytes", gpu->states_bytes);
    if (gpu->server.bytes > 0) json.Field("server_bytes", gpu->server.bytes);
    json.Field("bytes", gpu->bytes());
    if (gpu->now)
      json.Field("total_bytes", gpu->now->total)
          .Field("used_bytes_with_a_context", gpu->now->total - gpu->now->free);
    json.EndObject();
  }
  // What `memserver run` must be given for this job alone.
  json.Field("pool_bytes", RoundUp(states.total() + m.frozen, kMiB))
      .Field("rcache_limit_bytes", RoundUp(plan.rcache.bytes, kMiB) * plan.layout.world);
  return json.EndObject().Take();
}

}  // namespace tidepool::trainer

#include "trainer/run/job.h"

#include <algorithm>

#include "base/text/plural.h"
#include "base/units.h"

namespace tidepool::trainer {

Result<RcachePlan> PlanRcache(const ChunkLayout& layout, Rank rank, const std::string& rcache,
                              uint64_t tail_bytes) {
  RcachePlan plan;
  plan.tail_bytes = tail_bytes;
  plan.resident_bytes = layout.ResidentBytes(rank);
  plan.block_bytes = layout.BlockBytes();
  const uint64_t chunks = layout.EvictableChunks(rank);
  plan.evictable_bytes = chunks * plan.block_bytes;

  const bool is_share = !rcache.empty() && rcache.back() == '%';
  Result<uint64_t> wanted = ParseSizeOrShare(rcache, plan.evictable_bytes);
  if (!wanted.ok())
    return Status(ErrorId::kConfigBadValue, wanted.status().what())
        .Where("--rcache")
        .Fix("write a share like 25%, a size like 64MiB, or auto");
  // A share is rounded to the nearest number of blocks; a size is never exceeded.
  const uint64_t for_blocks =
      is_share ? wanted.value() + plan.block_bytes / 2
               : wanted.value() - std::min(wanted.value(), plan.resident_bytes + tail_bytes);
  plan.blocks = plan.block_bytes > 0 ? std::min(for_blocks / plan.block_bytes, chunks) : 0;

  if (plan.blocks == 0 && chunks > 0) {
    return Status(ErrorId::kRcacheTooSmall, "--rcache " + rcache +
                                                " leaves no room for one block of " +
                                                FormatBytes(plan.block_bytes))
        .Where("--rcache " + rcache)
        .Why("resident chunks take " + FormatBytes(plan.resident_bytes) +
             ", the others share blocks of one chunk each")
        .Fix("give at least --rcache " + std::to_string(layout.RcacheBytes(rank, 1) + tail_bytes) +
             ", or a smaller --chunk-size");
  }

  plan.bytes = std::max(layout.RcacheBytes(rank, plan.blocks) + tail_bytes, kPageBytes);
  return plan;
}

Result<RcachePlan> PlanStagedRcache(const ChunkLayout& layout, const StagePlan& stages,
                                    const std::string& rcache) {
  const Rank rank = stages.rank;
  // A share below two stages is raised to two stages: the next one is fetched while one computes.
  const uint64_t bytes_of_two = layout.RcacheBytes(rank, stages.blocks_of_two) + stages.tail_bytes;
  const bool is_share = !rcache.empty() && rcache.back() == '%';
  Result<RcachePlan> plan = PlanRcache(layout, rank, rcache, stages.tail_bytes);
  if (is_share && (plan.ok() ? plan->blocks < stages.blocks_of_two
                             : plan.status().id() == ErrorId::kRcacheTooSmall))
    plan = PlanRcache(layout, rank, std::to_string(bytes_of_two), stages.tail_bytes);

  if (!plan.ok() && plan.status().id() != ErrorId::kRcacheTooSmall) return plan;
  if (plan.ok() && plan->blocks >= stages.blocks_of_one) return plan;

  const char* or_else =
      stages.stages() < stages.cuts.ends.back() ? ", or more stages with --pipeline" : "";

  return Status(
             ErrorId::kRcacheTooSmall,
             "--rcache " + rcache + " has no room for the weights of one stage: the largest of " +
                 Counted(stages.stages(), "stage") + " needs " +
                 Counted(stages.blocks_of_one, "block") + " of " + FormatBytes(layout.BlockBytes()))
      .Where("--rcache " + rcache)
      .Why("beside them are " + FormatBytes(layout.ResidentBytes(rank)) +
           " of resident chunks and " + FormatBytes(stages.tail_bytes) + " of sums of gradients")
      .Fix("give at least --rcache " + std::to_string(LeastStagedRcache(layout, stages)) + or_else);
}

uint64_t LeastStagedRcache(const ChunkLayout& layout, const StagePlan& stages) {
  return layout.RcacheBytes(stages.rank, stages.blocks_of_one) + stages.tail_bytes;
}

Result<DType> DTypeFromName(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == NameOf(dtype)) return dtype;
  }
  return Status(ErrorId::kUsageError, "unknown dtype \"" + name + "\"")
      .Where("--dtype")
      .Fix("choose fp32, bf16 or fp16");
}

OptimizerSpec MakeOptimizerSpec(const OptimizerOptions& options, uint64_t seed) {
  OptimizerSpec spec;
  spec.rule = RuleFromName(options.rule).value_or(OptimizerRule::kAdamW);
  spec.states = StateFormFromName(options.states).value_or(StateForm::kF32);
  spec.beta1 = options.beta1;
  spec.beta2 = options.beta2;
  spec.eps = options.eps;
  spec.momentum = options.momentum;
  spec.dampening = options.dampening;
  spec.lr_decay = options.lr_decay;
  spec.nesterov = options.nesterov ? 1 : 0;
  // Without stochastic rounding, a run may be continued with another seed.
  const bool by_chance = spec.states == StateForm::kSplitBf16 || spec.states == StateForm::kSplit8;
  spec.rounding_seed = by_chance ? seed : 0;
  return spec;
}

Result<optim::ScheduleSpec> ScheduleOf(const TrainingOptions& options) {
  optim::ScheduleSpec schedule;
  TP_ASSIGN_OR_RETURN(schedule.kind, optim::ScheduleFromName(options.schedule));
  schedule.base_lr = options.learning_rate;
  schedule.min_lr = std::min(options.min_learning_rate, options.learning_rate);
  schedule.warmup_steps = std::min(options.warmup_steps, options.steps);
  schedule.total_steps = options.steps;
  return schedule;
}

client::JobSpec MakeJobSpec(const ChunkLayout& layout, const RunOptions& options,
                            const RcachePlan& rcache, const std::string& name) {
  client::JobSpec spec;
  spec.name = name;
  spec.world = layout.world;
  spec.dtype = layout.dtype;
  spec.optimizer = MakeOptimizerSpec(options.optimizer, options.model.seed);
  spec.max_grad_norm = options.optimizer.clip;
  spec.micro_batches = options.training.micro_batches;
  if (!options.pipeline.ends.empty()) {
    // The rank accumulates its micro-batches itself.
    const bool is_sum = spec.micro_batches > 1 && spec.dtype != DType::kF32;
    spec.sums_gradients = is_sum ? 1 : 0;
    spec.micro_batches = 1;
  }
  spec.loss_scaling = layout.dtype == DType::kF16 ? 1 : 0;
  spec.rcache_bytes = rcache.bytes;
  // kDecayGroup, kNoDecayGroup.
  spec.parameter_groups = {{1.0f, options.optimizer.weight_decay}, {1.0f, 0.0f}};

  for (const std::vector<Rank>& members : layout.data_groups) {
    client::DataGroup group;
    for (const Rank rank : members) group.rank_mask |= uint64_t{1} << rank;
    spec.data_groups.push_back(group);
  }

  spec.f32_chunks = layout.OwnF32Chunks();
  for (const ChunkPlace& chunk : layout.chunks) {
    if (chunk.frozen) {
      spec.frozen.push_back({chunk.elements, chunk.dtype, {}});
    } else {
      spec.chunks.push_back({chunk.elements, chunk.data_group});
    }
  }

  for (const ParameterPlace& place : layout.parameters) {
    if (layout.chunks[place.chunk].frozen) continue;
    client::ParameterSpec parameter;
    parameter.name = place.name;
    parameter.dims = place.dims;
    parameter.chunk = place.chunk;
    parameter.group = place.optimizer_group;
    parameter.element_begin = place.element_begin;
    parameter.element_count = place.element_count;
    spec.parameters.push_back(std::move(parameter));
  }

  return spec;
}

}  // namespace tidepool::trainer

#include "trainer/run/run_plan.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/units.h"
#include "optim/adam_stream.h"
#include "trainer/comm/operation_thread.h"
#include "trainer/comm/staged_collective.h"
#include "trainer/inputs/model_config.h"
#include "trainer/layout/chunk_traffic.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/model/tiles/tile_places.h"
#include "trainer/run/expert_plan.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kTilesOfChunk = 2;  // the most, where the search chooses

Result<GptShape> ShapeOfBase(const std::string& base) {
  if (std::error_code unknown; !std::filesystem::exists(base, unknown)) {
    return Status(ErrorId::kFileUnreadable, "there is no " + base)
        .Where("--base " + base)
        .Fix("give --base the directory that `trainer run --save DIR` wrote");
  }

  TP_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(DirectoryOfWeights(base)));
  if (!config.lora.on()) return config.shape;
  return Status(ErrorId::kUsageError, base + " holds adapters, not a whole model")
      .Where("--base " + base)
      .Why("adapters are trained over a whole model")
      .Fix("give the base of those adapters: --base " + config.base);
}

// The flag that names the model, as the user gave it.
std::string ModelFlag(const RunOptions& options) {
  if (!options.adapters.base.empty()) return "--base " + options.adapters.base;
  if (!options.model.from.empty()) return "--from " + options.model.from;
  return "--preset " + options.model.preset;
}

// A pipeline would lose the routers' losses, which are computed inside stages.
Status CheckNoExperts(const GptShape& shape, const RunOptions& options) {
  if (!HasExperts(shape) || options.pipeline.stages.empty()) return {};
  return Status(ErrorId::kUsageError, "--pipeline has no meaning for a model with experts yet")
      .Where("--pipeline " + options.pipeline.stages)
      .Why("stages are planned for layers that all tokens go through")
      .Fix("leave --pipeline out, or take a model without experts");
}

Status CheckContext(const GptShape& shape, const RunOptions& options) {
  if (options.data.context <= shape.context) return {};
  return Status(ErrorId::kUsageError, "--context " + std::to_string(options.data.context) +
                                          " is longer than the model's " +
                                          std::to_string(shape.context))
      .Where(ModelFlag(options))
      .Fix("give at most --context " + std::to_string(shape.context));
}

Status CheckVocabTiles(const GptShape& shape, const RunOptions& options) {
  const uint32_t tiles = options.model.vocab_tiles;
  if (tiles <= shape.vocab) return {};
  return Status(ErrorId::kUsageError, "a vocabulary of " + std::to_string(shape.vocab) +
                                          " entries has no " + std::to_string(tiles) + " tiles")
      .Where("--vocab-tiles " + std::to_string(tiles))
      .Why("each tile holds one entry at least; from about 1,000 an operator is no slower for it")
      .Fix("give --vocab-tiles " + std::to_string(std::max(1U, shape.vocab / 4096)) + " or fewer");
}

// GptShape::tile_elements by --tile-linear.
Result<uint64_t> TileElementsOf(const GptShape& shape, const RunOptions& options) {
  const std::string& size = options.model.tile_linear;
  if (size.empty()) return uint64_t{0};
  if (options.adapters.rank > 0 || !options.adapters.base.empty()) {
    return Status(ErrorId::kUsageError, "--tile-linear is for models that are trained as a whole")
        .Where("--tile-linear " + size)
        .Why("adapters are trained beside whole layers, which a base file holds")
        .Fix("leave it out");
  }

  TP_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(options.model.dtype));
  const Result<uint64_t> bytes = ParseSize(size);
  const LinearSizes linears = SizesOfLinears(shape);
  const uint64_t least = linears.widest_row * BytesOf(dtype),
                 most = linears.largest * BytesOf(dtype);
  if (bytes.ok() && bytes.value() >= least && bytes.value() < most)
    return bytes.value() / BytesOf(dtype);

  const bool is_large = bytes.ok() && bytes.value() >= most;
  return Status(ErrorId::kConfigBadValue,
                !bytes.ok() ? bytes.status().what()
                : is_large  ? "--tile-linear has no effect: no linear layer of a block is larger"
                           : "a tile of " + FormatBytes(bytes.value()) + " holds no row of a layer")
      .Where("--tile-linear " + size)
      .Why("a row of the widest layer takes " + FormatBytes(least) + " in " + options.model.dtype +
           ", the largest layer " + FormatBytes(most))
      .Fix("give a size from " + std::to_string(least) + " on and below " + std::to_string(most) +
           (is_large ? ", or leave --tile-linear out" : ""));
}

Result<LoraShape> LoraOf(const GptShape& shape, const AdapterOptions& adapters) {
  if (adapters.rank > 0)
    return MakeLoraShape(shape, adapters.rank, adapters.alpha, adapters.targets);
  if (adapters.base.empty()) return LoraShape();
  return Status(ErrorId::kUsageError,
                "--base says what stays as it is, and nothing says what is trained")
      .Where("--base " + adapters.base)
      .Fix(
          "give --lora-rank N, such as 8, to train adapters over it, or --from in place of --base "
          "to "
          "train the model itself");
}

// rCache bytes for blocks, by --rcache; those of all chunks while that is still to be settled.
Result<uint64_t> BlockBytesOf(const ChunkLayout& layout, const std::string& rcache) {
  constexpr Rank kAnyRank = 0;
  const uint64_t all = layout.EvictableChunks(kAnyRank) * layout.BlockBytes();
  if (rcache == "auto" || all == 0) return all;
  TP_ASSIGN_OR_RETURN(const RcachePlan plan, PlanRcache(layout, kAnyRank, rcache));
  const Result<uint64_t> size = ParseSizeOrShare(rcache, all);
  if (!rcache.empty() && rcache.back() == '%') return std::min(size.value(), all);
  return std::min(size.value(), plan.resident_bytes + all) - plan.resident_bytes;
}

StageCuts CutsOf(const RunOptions& options, const GptShape& shape, uint32_t world) {
  const uint32_t columns = options.pipeline.columns;
  return {.ends = options.pipeline.ends,
          .ranks = options.pipeline.ranks,
          .columns = columns,
          .width = world / columns,
          .is_tied = HasTiedHead(shape)};
}

// Makes a data group per stage. Parameters keep the order of the notes, as with one rank, so that
// the norm's terms are added in the same order.
void GroupByStage(const StageCuts& cuts, const GptShape& shape, std::vector<ParameterNote>* notes,
                  LayoutOptions* layout) {
  for (uint32_t stage = 0; stage < cuts.stages(); ++stage)
    layout->data_groups.push_back(cuts.RanksOf(stage));
  for (ParameterNote& note : *notes)
    note.data_group = cuts.StageOf(GptBlocksOf(note.name, shape).first);
  layout->fuses_small = false;
}

Result<ChunkLayout> LayoutOf(const GptShape& shape, const LoraShape& lora,
                             const RunOptions& options, uint32_t world) {
  std::vector<ParameterNote> notes = GptParameters(shape, lora);
  LayoutOptions layout;
  TP_ASSIGN_OR_RETURN(layout.dtype, DTypeFromName(options.model.dtype));
  layout.world = world;
  layout.data_groups = ExpertDataGroups(shape, world);
  layout.resident = TablesThatStay(shape, notes);
  // The least waste alone would take larger chunks, and blocks be none the smaller.
  if (shape.tile_elements > 0) {
    layout.chunk_bytes_max = std::min(layout.chunk_bytes_max,
                                      kTilesOfChunk * shape.tile_elements * BytesOf(layout.dtype));
  }
  if (!options.pipeline.ends.empty() && world > 1)
    GroupByStage(CutsOf(options, shape, world), shape, &notes, &layout);

  if (options.memory.chunk_size == kChunkByTraffic) {
    TP_ASSIGN_OR_RETURN(const ChunkLayout first, BuildLayout(notes, layout));
    TP_ASSIGN_OR_RETURN(const uint64_t blocks, BlockBytesOf(first, options.memory.rcache));
    layout.chunk_bytes = ChunkBytesByTraffic(first, blocks);
  } else if (options.memory.chunk_size != "auto") {
    TP_ASSIGN_OR_RETURN(layout.chunk_bytes, ParseSize(options.memory.chunk_size));
  }
  return BuildLayout(notes, layout);
}

StagePlan StagesIn(const ChunkLayout& layout, const GptShape& shape, const RunOptions& options,
                   Rank rank) {
  std::vector<StageSpan> layers;
  for (const ParameterPlace& parameter : layout.parameters) {
    const auto [first, last] = GptBlocksOf(parameter.name, shape);
    layers.push_back({first, last});
  }
  return MakeStagePlan(layout, layers, CutsOf(options, shape, layout.world),
                       options.training.micro_batches, rank);
}

// All ranks of a job have rCaches of equal size: that of the rank that needs the most.
Status PlanStages(const RunOptions& options, Rank rank, RunPlan* plan) {
  const ChunkLayout& layout = plan->layout;
  std::vector<StagePlan> ranks;
  for (Rank other = 0; other < layout.world; ++other)
    ranks.push_back(StagesIn(layout, plan->shape, options, other));
  // The rank that needs the most comes first, so that an error names it.
  std::stable_sort(ranks.begin(), ranks.end(), [&](const StagePlan& a, const StagePlan& b) {
    return LeastStagedRcache(layout, a) > LeastStagedRcache(layout, b);
  });

  uint64_t most = 0;
  for (StagePlan& stages : ranks) {
    TP_ASSIGN_OR_RETURN(const RcachePlan rcache,
                        PlanStagedRcache(layout, stages, options.memory.rcache));
    most = std::max(most, rcache.bytes);
    if (stages.rank != rank) continue;
    plan->rcache = rcache;
    plan->stages = std::move(stages);
  }

  plan->rcache.bytes = most;
  plan->rcache.blocks = layout.BlocksIn(rank, most - plan->stages->tail_bytes);
  return {};
}

Status CheckOptimizer(const RunOptions& options) {
  TP_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(options.model.dtype));
  const char* why = WhyBad(MakeOptimizerSpec(options.optimizer, options.model.seed), dtype);
  if (why == nullptr) return {};
  return Status(ErrorId::kUsageError, why)
      .Where("--optimizer " + options.optimizer.rule + " --states " + options.optimizer.states +
             " --dtype " + options.model.dtype)
      .Fix("correct the flag; states other than fp32 need --dtype bf16");
}

}  // namespace

Result<RunPlan> MakeRunPlan(const RunOptions& options, uint32_t world, Rank rank,
                            const std::string& job) {
  std::shared_ptr<const SavedModel> from;
  GptShape shape;

  if (!options.model.from.empty()) {
    TP_ASSIGN_OR_RETURN(SavedModel saved, SavedModel::Open(options.model.from));
    from = std::make_shared<const SavedModel>(std::move(saved));
    shape = from->config().shape;
  } else {
    TP_ASSIGN_OR_RETURN(shape, options.adapters.base.empty() ? FindGptPreset(options.model.preset)
                                                             : ShapeOfBase(options.adapters.base));
  }

  const bool is_new = options.model.from.empty() && options.adapters.base.empty();
  TP_ASSIGN_OR_RETURN(shape,
                      WithExperts(shape, options.model.moe, is_new ? "" : ModelFlag(options)));
  TP_RETURN_IF_ERROR(CheckNoExperts(shape, options));
  TP_RETURN_IF_ERROR(CheckContext(shape, options));
  TP_RETURN_IF_ERROR(CheckVocabTiles(shape, options));
  TP_ASSIGN_OR_RETURN(RunPlan plan, MakeRunPlan(shape, options, world, rank, job));
  plan.from = std::move(from);
  return plan;
}

Result<RunPlan> MakeRunPlan(const GptShape& shape, const RunOptions& options, uint32_t world,
                            Rank rank, const std::string& job) {
  RunPlan plan;
  plan.shape = shape;
  plan.rank = rank;
  TP_ASSIGN_OR_RETURN(plan.shape.tile_elements, TileElementsOf(shape, options));

  TP_RETURN_IF_ERROR(CheckExpertRanks(shape, options, world));
  plan.expert_groups = ExpertRanks(shape, rank);
  plan.exchange = options.memory.plan == "ddp" ? Exchange::kReplicated : Exchange::kSharded;
  TP_RETURN_IF_ERROR(CheckOptimizer(options));
  TP_RETURN_IF_ERROR(ParseGpuStatesWish(options.memory.gpu_states).status());
  TP_ASSIGN_OR_RETURN(plan.lora, LoraOf(shape, options.adapters));
  TP_ASSIGN_OR_RETURN(plan.layout, LayoutOf(plan.shape, plan.lora, options, world));

  if (!options.adapters.base.empty()) {
    TP_ASSIGN_OR_RETURN(FrozenBase base,
                        FrozenBase::Open(WholeModelAt(options.adapters.base), plan.layout));
    plan.base = std::make_shared<const FrozenBase>(std::move(base));
  }

  if (!options.pipeline.ends.empty()) {
    TP_RETURN_IF_ERROR(PlanStages(options, rank, &plan));
  } else {
    TP_ASSIGN_OR_RETURN(plan.rcache, PlanRcache(plan.layout, rank, options.memory.rcache));
  }

  plan.spec = MakeJobSpec(plan.layout, options, plan.rcache, job);
  plan.memory = EstimateMemory(plan.layout, {.micro_batches = options.training.micro_batches,
                                             .rcache_bytes = plan.rcache.bytes,
                                             .optimizer = plan.spec.optimizer,
                                             .parts_at_once = kPartsAtOnce,
                                             .staged_at_once = kStagedAtOnce});
  return plan;
}

Status PlaceGpuStates(const MemoryOptions& memory, uint32_t gpus, RunPlan* plan) {
  TP_ASSIGN_OR_RETURN(const GpuStatesWish wish, ParseGpuStatesWish(memory.gpu_states));
  TP_ASSIGN_OR_RETURN(plan->gpu_states,
                      PlanGpuStates(wish, plan->layout, plan->spec,
                                    {.gpus = gpus, .why_no_kernel = optim::WhyNoAdam()}));
  plan->spec.states_on_gpu = plan->gpu_states.chunks;
  return {};
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

}  // namespace tidepool::trainer

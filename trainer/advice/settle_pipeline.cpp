#include "trainer/advice/settle_pipeline.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/system/whole_file.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "trainer/advice/pipeline_advice.h"
#include "trainer/advice/pipeline_run.h"
#include "trainer/advice/pipeline_text.h"
#include "trainer/advice/timeline_svg.h"
#include "trainer/advice/topology_file.h"
#include "trainer/plan/pipeline/partition_lp.h"
#include "trainer/profile/step_profile.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace {

constexpr size_t kStagesOfRanksMax = 64;  // data groups of a job (shm/spec/spec_limits.h)

Result<PipelineMachine> MachineOf(const RunOptions& options, uint32_t ranks) {
  PipelineMachine machine;
  if (options.pipeline.topology_file.empty()) {
    if (ranks > kMappedGpusMax) {
      return Status(ErrorId::kUsageError,
                    std::to_string(ranks) + " GPUs are more than stages can be mapped to")
          .Where("--ranks " + std::to_string(ranks))
          .Fix("give at most --ranks " + std::to_string(kMappedGpusMax) + " with --pipeline");
    }

    machine = MachineOfThePaper(std::max(ranks, 1U));
  } else {
    TP_ASSIGN_OR_RETURN(machine, ReadTopology(options.pipeline.topology_file));
  }

  const uint32_t gpus = machine.topology.gpus();

  if (options.ranks != 0 && options.ranks != gpus) {
    return Status(ErrorId::kUsageError, "--ranks " + std::to_string(options.ranks) + ", and " +
                                            Counted(gpus, "GPU") + " in the topology")
        .Where("--topology " + options.pipeline.topology_file)
        .Why("a pipeline has one rank a GPU")
        .Fix("leave --ranks out");
  }

  if (!options.memory.device_memory.empty()) {
    Result<uint64_t> bytes = ParseSize(options.memory.device_memory);
    if (!bytes.ok() || *bytes == 0) {
      return Status(ErrorId::kConfigBadValue,
                    bytes.ok() ? "0 bytes are no memory" : bytes.status().what())
          .Where("--device-memory " + options.memory.device_memory)
          .Fix("write a size like 24GiB");
    }
    machine.gpu_bytes = *bytes;
  }
  return machine;
}

Result<uint64_t> PeakOf(const PipelineModel& model, uint32_t blocks, uint32_t vocab) {
  ProfileTask task{.shape = model.shape, .lora = {}, .dtype = model.dtype};
  task.shape.layers = blocks;
  task.shape.vocab = vocab;
  task.sequences = model.sequences;
  task.tokens = model.tokens;
  task.vocab_tiles = model.vocab_tiles;
  TP_ASSIGN_OR_RETURN(const StepProfile profile, ProfileStep(task));
  return profile.activation_bytes;
}

// Equal blocks are profiled once: two blocks differ from one by what forward keeps per block, and
// without a vocabulary the peak is that of a block.
Result<BlockProfile> ProfileOf(const PipelineModel& model) {
  TP_ASSIGN_OR_RETURN(const uint64_t one, PeakOf(model, 1, model.shape.vocab));
  TP_ASSIGN_OR_RETURN(const uint64_t two, PeakOf(model, 2, model.shape.vocab));
  TP_ASSIGN_OR_RETURN(const uint64_t block, PeakOf(model, 1, 1));
  BlockProfile profile;
  profile.boundary = model.sequences * model.tokens * model.shape.hidden * BytesOf(model.dtype);
  profile.kept = two - std::min(one, two);
  profile.work = block;
  profile.head_work = one - std::min(one, profile.kept);
  return profile;
}

std::string TitleOf(const PipelineAdvice& advice) {
  return advice.question.model.shape.name + ": " +
         Counted(advice.best().task.stages.size(), "stage") + " on " +
         Counted(advice.task.gpus, "GPU") + " (" + advice.question.machine.topology.Name() +
         "), a step of " + FormatNs(advice.best().schedule.step_ns);
}

Status WriteFiles(const PipelineOptions& files, const PipelineAdvice& advice) {
  if (!files.lp_file.empty()) {
    PipelineTask task = advice.task;
    const double rate = advice.best().bytes_per_ns;
    if (rate > 0) task.bytes_per_ns = rate;
    TP_RETURN_IF_ERROR(WriteWholeFile(files.lp_file, PartitionProgram(StageTable(task))));
  }

  if (files.timeline_file.empty()) return {};
  return WriteWholeFile(files.timeline_file, TimelineSvg(advice.best(), TitleOf(advice)));
}

struct Asked {
  PipelineQuestion question;
  uint64_t pool_bytes = 0;  // of the job's states
};

Result<Asked> AskedFor(const RunOptions& options, uint32_t ranks) {
  Asked asked;
  PipelineQuestion& question = asked.question;
  TP_ASSIGN_OR_RETURN(question.stages, StagesOf(options.pipeline.stages));
  TP_RETURN_IF_ERROR(CheckNoAdapters(options));
  TP_ASSIGN_OR_RETURN(question.machine, MachineOf(options, ranks));
  question.micro_batches = options.training.micro_batches;

  RunOptions whole = options;
  whole.memory.rcache = "100%";  // any size gives the same bytes of states
  TP_ASSIGN_OR_RETURN(const RunPlan plan,
                      MakeRunPlan(whole, question.machine.topology.gpus(), 0, "pipeline"));
  asked.pool_bytes = plan.memory.pool_bytes;

  question.model.shape = plan.shape;
  question.model.dtype = plan.layout.dtype;
  question.model.sequences = std::max<uint64_t>(1, options.data.batch / options.pipeline.columns);
  question.model.tokens = options.data.context > 0 ? options.data.context : plan.shape.context;
  question.model.checkpointing = options.model.activation_checkpointing;
  question.model.vocab_tiles = options.model.vocab_tiles;
  TP_ASSIGN_OR_RETURN(question.model.profile, ProfileOf(question.model));
  return asked;
}

// Stages are assigned to the `width` ranks of a column in the order of the mapping. A single rank
// computes all, whatever the topology.
Status PlaceStages(const PipelineWay& way, uint32_t width, PipelineOptions* pipeline) {
  const std::vector<uint32_t>& order = way.task.order;
  if (width > 1 && order.size() != width) {
    return Status(ErrorId::kUsageError,
                  Counted(order.size(), "GPU") + " in the topology, and " + Counted(width, "rank"))
        .Where("--topology " + pipeline->topology_file)
        .Why("a pipeline has one rank a GPU, and each of several columns is one")
        .Fix("start as many ranks a column as the topology has GPUs, or leave --topology out");
  }

  const uint32_t world = width * pipeline->columns;
  if (world > 1 && way.partition.ends.size() > kStagesOfRanksMax) {
    return Status(ErrorId::kUsageError,
                  Counted(way.partition.ends.size(), "stage") + " on " + Counted(world, "rank"))
        .Where("--pipeline " + pipeline->stages)
        .Why("each stage is a data group of its own, and a job has " +
             std::to_string(kStagesOfRanksMax) + " at most")
        .Fix("give at most --pipeline " + std::to_string(kStagesOfRanksMax));
  }

  pipeline->ends = way.partition.ends;
  pipeline->ranks.clear();
  for (size_t stage = 0; stage < pipeline->ends.size(); ++stage)
    pipeline->ranks.push_back(width > 1 ? order[stage % width] : 0);
  return {};
}

}  // namespace

Status SettleStages(RunOptions* options, const RankPlace& place) {
  if (options->pipeline.stages.empty()) return {};
  RunOptions whole = *options;
  whole.memory.rcache = "100%";
  TP_ASSIGN_OR_RETURN(const RunPlan plan, MakeRunPlan(whole, place.world, place.rank, "pipeline"));
  TP_RETURN_IF_ERROR(CheckPipelineRun(*options, plan.shape, place.world));
  const uint32_t columns = options->pipeline.columns, width = place.world / columns;
  TP_ASSIGN_OR_RETURN(Asked asked, AskedFor(*options, width));
  const bool is_auto = asked.question.stages == 0;

  for (;;) {
    TP_ASSIGN_OR_RETURN(const PipelineAdvice advice, AdvisePipeline(asked.question));
    TP_RETURN_IF_ERROR(PlaceStages(advice.best(), width, &options->pipeline));
    if (!options->output.trace_file.empty())
      options->pipeline.planned = {"planned: " + TitleOf(advice), PlannedSpans(advice.best())};
    const auto stages = static_cast<uint32_t>(options->pipeline.ends.size());
    if (!is_auto || stages == plan.shape.layers) return {};
    // A given rCache may be too small for the largest stage.
    const Status fits = MakeRunPlan(*options, place.world, place.rank, "pipeline").status();
    if (fits.id() != ErrorId::kRcacheTooSmall) return {};
    asked.question.stages = stages + 1;
  }
}

Result<std::string> SettlePipeline(const RunOptions& options, uint32_t ranks, const Clock* clock) {
  TP_ASSIGN_OR_RETURN(Asked asked, AskedFor(options, ranks));

  const int64_t begin_ns = clock->NowNs();
  TP_ASSIGN_OR_RETURN(const PipelineAdvice advice, AdvisePipeline(std::move(asked.question)));
  PipelineWords words;
  words.search_ns = clock->NowNs() - begin_ns;
  words.verbose = options.output.verbose;
  words.pool_bytes = asked.pool_bytes;
  TP_RETURN_IF_ERROR(WriteFiles(options.pipeline, advice));
  return options.output.json ? PipelineJson(advice, words) + "\n" : DescribePipeline(advice, words);
}

}  // namespace tidepool::trainer

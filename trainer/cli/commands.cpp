// The subcommands that do not train and need no LibTorch: estimate, export, tokenize, launch.
#include <iostream>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/text/error_text.h"
#include "base/system/whole_file.h"
#include "client/job_spec.h"
#include "client/admin/ask_gpus.h"
#include "device/gpu_list.h"
#include "trainer/run/check_run.h"
#include "trainer/advice/device_memory.h"
#include "trainer/advice/host_fit.h"
#include "trainer/advice/device_place.h"
#include "trainer/launch/child_process.h"
#include "trainer/launch/rank_place.h"
#include "trainer/launch/spawn_ranks.h"
#include "trainer/cli/run.h"
#include "trainer/data/bpe_tokenizer.h"
#include "trainer/data/text_files.h"
#include "trainer/data/token_file.h"
#include "trainer/data/tokenizer_file.h"
#include "trainer/output/hugging_face.h"
#include "trainer/run/describe_plan.h"
#include "trainer/run/run_plan.h"
#include "trainer/advice/limits/machine_fit.h"
#include "trainer/advice/picture/plan_picture.h"
#include "trainer/advice/pipeline_run.h"
#include "trainer/advice/settle_rcache.h"
#include "trainer/advice/settle_pipeline.h"

#include <unistd.h>

namespace tidepool::trainer {
namespace {

constexpr int64_t kAskNs = 2 * kNsPerSecond;  // for a memserver's answer

int Ended(const Status& status) {
  if (status.ok()) return kExitOk;
  std::cerr << ErrorText(status) << "\n";
  return status.exit_code();
}

// Assumes all ranks on this node; if it has no GPU, a node with one GPU per rank.
Result<std::optional<GpuEstimate>> OfGpu(const RunOptions& options, RunPlan* plan) {
  TP_ASSIGN_OR_RETURN(const DeviceWish wish, ParseDeviceWish(options.device.name));
  const auto on_host = [&]() -> Result<std::optional<GpuEstimate>> {
    TP_RETURN_IF_ERROR(PlaceGpuStates(options.memory, 0, plan));
    return std::optional<GpuEstimate>();
  };
  if (wish.kind == DeviceWish::Kind::kCpu) return on_host();

  RankPlace place;
  place.world = place.local_world = plan->layout.world;
  const auto gpus = device::ListGpus();
  if (!gpus.ok() && wish.kind == DeviceWish::Kind::kAuto) return on_host();

  if (!gpus.ok()) {
    TP_RETURN_IF_ERROR(PlaceGpuStates(options.memory, wish.ordinal ? 1 : plan->layout.world, plan));
    return std::optional(EstimateGpu(*plan, wish.ordinal ? plan->layout.world : 1, std::nullopt,
                                     {.why_not = "no GPU is here"}));
  }

  TP_ASSIGN_OR_RETURN(const DevicePlace chosen, ChooseDevice(wish, place, gpus));
  if (!chosen.gpu) return on_host();
  TP_RETURN_IF_ERROR(PlaceGpuStates(options.memory, chosen.gpus, plan));
  const auto server = client::AskGpus(options.server.socket_dir, kAskNs);
  return std::optional(EstimateGpu(*plan, chosen.sharers, BytesNow(chosen.gpu->ordinal),
                                   ServerContextOf(server, device::Text(chosen.gpu->uuid))));
}

// The memory that one rank has for a step: free memory of its GPU, or of the host beside the pool
// and the rCaches. Nothing if the GPU's free memory is unknown.
std::optional<LimitsTask> RoomFor(const RunPlan& plan, const GpuEstimate* gpu,
                                  const HostFit& host) {
  LimitsTask task;
  const uint64_t world = plan.layout.world;

  if (gpu != nullptr) {
    if (!gpu->now) return std::nullopt;
    const uint64_t taken = gpu->rank_bytes * gpu->sharers + gpu->states_bytes;
    task.room_bytes = (gpu->now->free - std::min(gpu->now->free, taken)) / gpu->sharers;
    task.room_name = "the GPU, for each rank";
  } else {
    const uint64_t taken = host.bytes + kHostLeftBytes;
    task.room_bytes =
        (host.there.bytes_available - std::min(host.there.bytes_available, taken)) / world;
    task.room_name = world == 1 ? "host memory" : "host memory, for each rank";
  }

  task.on_host = gpu == nullptr;
  return task;
}

// The largest batch and the smallest rCache. Nothing if the run does not fit, or has stages.
Result<std::optional<RunLimits>> LimitsOf(const RunOptions& options, const RunPlan& plan,
                                          std::optional<LimitsTask> task, bool fits) {
  if (!task || !fits || plan.stages) return std::optional<RunLimits>();
  TP_ASSIGN_OR_RETURN(const StepProfile profile, ProfileRun(plan, options));
  const uint32_t columns = ColumnsOf(options, plan.layout.world);
  task->choice.layout = &plan.layout;
  task->choice.profile = &profile;
  task->choice.rank = plan.rank;
  task->choice.micro_batches = options.training.micro_batches;
  task->choice.optimizer = plan.spec.optimizer;

  task->profile = [&](uint64_t sequences) {
    RunOptions other = options;
    other.data.batch = sequences * columns;
    return ProfileRun(plan, other);
  };
  TP_ASSIGN_OR_RETURN(RunLimits limits, FindLimits(*task));
  limits.batch *= columns;
  return std::optional(std::move(limits));
}

// Writes the picture of the rCache over a step.
Status DrawPlan(const RunOptions& options, const RunPlan& plan) {
  TP_ASSIGN_OR_RETURN(const StepProfile profile, ProfileRun(plan, options));
  const AccessSchedule order =
      ForeseeOrder(profile.trace, plan.layout, plan.rank, options.training.micro_batches);
  const uint64_t least = SmallestRcache(order, EvictableMask(plan.layout));

  if (plan.rcache.blocks < least) {
    const std::string fits = std::to_string(plan.layout.RcacheBytes(plan.rank, least));
    return Status(ErrorId::kRcacheTooSmall, "this order of use needs " + std::to_string(least) +
                                                " blocks, and --rcache " + options.memory.rcache +
                                                " is " + std::to_string(plan.rcache.blocks))
        .Where("--svg " + options.output.svg_file)
        .Fix("give --rcache " + fits + " or more, or --rcache auto with --device-memory SIZE");
  }

  const std::string title =
      plan.shape.name + ", " + options.model.dtype + ": " +
      (plan.way ? "--plan " + plan.way->way.name : "--rcache " + options.memory.rcache) +
      ", rank " + std::to_string(plan.rank) + " of " + std::to_string(plan.layout.world);
  return WriteWholeFile(options.output.svg_file,
                        PlanSvg(order, plan.layout, plan.rcache.blocks, title));
}

std::string PictureLine(const std::string& file) {
  return file.empty() ? "" : "picture   " + file + ": the rCache over a step\n";
}

Status Estimate(RunOptions options) {
  uint32_t world = options.ranks;
  if (world == 0) {
    TP_ASSIGN_OR_RETURN(const RankPlace here, DetectRank(ReadEnvironment(), getppid()));
    world = here.world;
  }

  if (world > client::kRanksMax) {
    return Status(ErrorId::kUsageError,
                  std::to_string(world) + " ranks are more than one node can have")
        .Where("--ranks")
        .Fix("give at most 64");
  }

  if (!options.pipeline.stages.empty()) {
    const SteadyClock clock;
    TP_ASSIGN_OR_RETURN(const std::string advice, SettlePipeline(options, world, &clock));
    std::cout << advice;
    return {};
  }

  RankPlace place;  // assumes all ranks on this node
  place.world = place.local_world = world;
  TP_ASSIGN_OR_RETURN(Settlement settled, SettleRcache(&options, place));
  TP_ASSIGN_OR_RETURN(RunPlan plan, CheckPlan(options, place, "estimate"));
  plan.choice = std::move(settled.choice);
  plan.way = std::move(settled.way);

  if (!options.data.path.empty())
    TP_RETURN_IF_ERROR(OpenRunCorpus(options, plan.shape, world, 0, plan.from.get()).status());
  TP_ASSIGN_OR_RETURN(const std::optional<GpuEstimate> gpu, OfGpu(options, &plan));

  if (!options.output.svg_file.empty()) TP_RETURN_IF_ERROR(DrawPlan(options, plan));

  const HostFit fit = JudgeHost(options, plan, !gpu, ReadMemoryBudget(), LargestDrive());
  TP_ASSIGN_OR_RETURN(const std::optional<RunLimits> limits,
                      LimitsOf(options, plan, RoomFor(plan, gpu ? &*gpu : nullptr, fit), fit.fits));
  std::cout << (options.output.json
                    ? PlanJson(plan, gpu ? &*gpu : nullptr, limits ? &*limits : nullptr) + "\n"
                    : DescribePlan(plan) + DescribeGpuStates(plan) +
                          (gpu ? DescribeGpu(*gpu) : "") + (limits ? DescribeLimits(*limits) : "") +
                          DescribeVerdict(fit, gpu ? &*gpu : nullptr, limits ? &*limits : nullptr,
                                          options.data.batch) +
                          PictureLine(options.output.svg_file));
  return {};
}

// A rank may be restarted only if it then resumes the job.
bool Resumes(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--resume=auto" ||
        (arguments[i] == "--resume" && i + 1 < arguments.size() && arguments[i + 1] == "auto"))
      return true;
  }
  return false;
}

Status Export(const ExportOptions& options) {
  TP_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(options.dtype));
  TP_ASSIGN_OR_RETURN(const SavedModel model, SavedModel::Open(options.from, options.base));
  TP_RETURN_IF_ERROR(WriteHuggingFace(model, options.to, dtype));
  std::cout << "wrote " << options.to << "/" << kWeightsFile << ": "
            << GptParameterCount(model.config().shape) << " parameters in " << options.dtype
            << ", from " << options.from << " (" << model.Describe() << ")\n";
  return {};
}

Status Tokenize(const TokenizeOptions& options) {
  TP_ASSIGN_OR_RETURN(const TokenizerFile file, ReadTokenizer(options.tokenizer));
  TP_ASSIGN_OR_RETURN(BpeTokenizer tokenizer, BpeTokenizer::Make(file));
  TP_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.text));
  std::vector<uint32_t> ids;
  tokenizer.Encode(text, &ids);
  TP_RETURN_IF_ERROR(WriteTokenFile(options.to, ids, tokenizer.vocab()));
  std::cout << "wrote " << options.to << ": " << ids.size() << " tokens of " << text.size()
            << " bytes\n";
  return {};
}

}  // namespace

int RunTokenize(const TokenizeOptions& options) {
  return Ended(Tokenize(options));
}

int RunExport(const ExportOptions& options) {
  return Ended(Export(options));
}

int RunEstimate(const RunOptions& options) {
  return Ended(Estimate(options));
}

int RunLaunch(uint32_t ranks, uint32_t restarts, const std::vector<std::string>& arguments,
              const RunOptions& options) {
  // Checked once here instead of once in each rank.
  if (arguments.front() == "run") {
    if (const Status checked = CheckLaunch(options, ranks); !checked.ok()) return Ended(checked);
  }

  const SteadyClock clock;
  SpawnOptions spawn;
  Result<std::string> self = FindProgramBeside("trainer");
  if (!self.ok()) return Ended(self.status());
  spawn.ranks = ranks;
  spawn.program = self.value();
  spawn.arguments = arguments;
  spawn.max_restarts = Resumes(arguments) ? restarts : 0;
  Result<int> code = SpawnRanks(spawn, &clock);
  return code.ok() ? code.value() : Ended(code.status());
}

}  // namespace tidepool::trainer

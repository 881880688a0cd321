#include "trainer/advice/settle_rcache.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "client/admin/rates_place.h"
#include "device/fingerprint.h"
#include "device/gpu_list.h"
#include "trainer/advice/device_memory.h"
#include "trainer/advice/pipeline_run.h"
#include "trainer/layout/chunk_traffic.h"
#include "trainer/model/moe/moe_layers.h"
#include "trainer/plan/use_trace.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kWhole = "100%";  // any size gives the same layout

Status NoUse(const std::string& flag) {
  return Status(ErrorId::kUsageError, flag + " says nothing without --rcache auto or --plan")
      .Where("command line of trainer")
      .Fix("add --rcache auto or --plan auto, or leave " + flag + " out");
}

// What --dynamic-rcache needs beside the flags of its own rows (trainer/cli/flag_effects.cpp).
Status CheckDynamic(const RunOptions& options, const GptShape& shape, bool on_gpu) {
  if (!options.memory.dynamic_rcache) return {};
  const auto bad = [](const std::string& why, const std::string& fix) {
    return Status(ErrorId::kUsageError, "--dynamic-rcache is not for this run")
        .Where("--dynamic-rcache")
        .Why(why)
        .Fix(fix);
  };

  if (on_gpu)
    return bad("blocks on a GPU are memserver's memory, of which LibTorch can have nothing",
               "leave it out, or give --device cpu");
  if (HasExperts(shape))
    return bad("what experts need depends on the tokens, so no step measures it for the next one",
               "leave it out");
  if (!options.memory.plan.empty() && options.memory.plan != kAutoPlan)
    return bad("--plan " + options.memory.plan + " has one size of the rCache",
               "leave it out, or give --plan auto");
  return {};
}

Status NoMemoryKnown(const std::string& why) {
  return Status(ErrorId::kUsageError, "--rcache auto has no device memory to plan with: " + why)
      .Where("--rcache auto")
      .Fix(
          "give --device-memory SIZE: what one rank may use of its GPU, or with --device cpu of "
          "the host's memory; with --plan auto, --rcache SIZE is a limit too");
}

Result<DeviceMemory> MemoryOf(const MemoryOptions& options, const DeviceWish& wish,
                              const RankPlace& place) {
  if (!options.device_memory.empty()) {
    const Result<uint64_t> bytes = ParseSize(options.device_memory);
    if (bytes.ok() && bytes.value() > 0)
      return DeviceMemory{bytes.value(), 0, "--device-memory", place.world};
    return Status(ErrorId::kConfigBadValue,
                  bytes.ok() ? "0 bytes are no memory" : bytes.status().what())
        .Where("--device-memory " + options.device_memory)
        .Fix("write a size like 80GiB");
  }

  if (wish.kind == DeviceWish::Kind::kCpu)
    return NoMemoryKnown("on the host nobody can say how much of its memory a rank may have");
  if (place.world > 1)
    return NoMemoryKnown(
        "several ranks must come to the same size, and each may find something else in use");
  return AskGpu(wish, place);
}

}  // namespace

Result<StepProfile> ProfileRun(const RunPlan& plan, const RunOptions& options) {
  ProfileTask task{.shape = plan.shape, .lora = plan.lora, .dtype = plan.layout.dtype};
  task.sequences =
      std::max<uint64_t>(1, options.data.batch / ColumnsOf(options, plan.layout.world));
  task.tokens = options.data.context > 0 ? options.data.context : plan.shape.context;
  task.checkpointing = options.model.activation_checkpointing;
  task.vocab_tiles = options.model.vocab_tiles;

  task.stage_ends = options.pipeline.ends;
  if (plan.stages && plan.layout.world > 1) {
    for (uint32_t stage = 0; stage < plan.stages->stages(); ++stage)
      task.own_stages.push_back(plan.stages->Owns(stage));
  }
  task.micro_batches = options.training.micro_batches;
  if (!plan.expert_groups.empty()) task.expert_rank = plan.rank;
  TP_ASSIGN_OR_RETURN(StepProfile profile, ProfileStep(task));
  if (options.model.offload_activations && plan.shape.layers > 2) {
    // Two blocks' inputs are on the device at once (trainer/model/activation_store.h).
    profile.activation_bytes -=
        std::min(profile.activation_bytes, (plan.shape.layers - 2) * profile.boundary_bytes);
  }
  return profile;
}

std::optional<device::DeviceBytes> BytesNow(int ordinal) {
  const auto cuda = device::CudaDevice::Open({.ordinal = ordinal});
  if (!cuda.ok()) return std::nullopt;
  const auto bytes = cuda.value()->MemoryBytes();
  return bytes.ok() ? std::optional(bytes.value()) : std::nullopt;
}

Result<DeviceMemory> AskGpu(const DeviceWish& wish, const RankPlace& place) {
  const auto gpus = device::ListGpus();
  if (!gpus.ok()) return NoMemoryKnown("no GPU is here");
  TP_ASSIGN_OR_RETURN(const DevicePlace chosen, ChooseDevice(wish, place, gpus));
  if (!chosen.gpu) return NoMemoryKnown("no GPU can be used");
  const std::optional<device::DeviceBytes> now = BytesNow(chosen.gpu->ordinal);
  if (!now) return NoMemoryKnown("the GPU cannot be opened");
  return DeviceMemory{now->total / chosen.sharers,
                      (now->total - std::min(now->total, now->free)) / chosen.sharers,
                      "as the driver says", chosen.gpus, chosen.sharers};
}

namespace {

// Data that --rcache auto and --plan both need.
class Settler {
 public:
  Settler(RunOptions* options, const RankPlace& place)
      : options_(options), asked_(options->memory), place_(place) {}

  // Finds the layout (equal for any size), the limit and the profile. Errors: as SettleRcache.
  Status Look() {
    TP_ASSIGN_OR_RETURN(wish_, ParseDeviceWish(options_->device.name));
    const bool by_limit =
        asked_.chunk_size == kChunkByTraffic && asked_.rcache_given && asked_.rcache != "auto";
    options_->memory.rcache = by_limit ? asked_.rcache : kWhole;
    TP_ASSIGN_OR_RETURN(whole_, MakeRunPlan(*options_, place_.world, place_.rank, "auto"));
    TP_RETURN_IF_ERROR(CheckDynamic(*options_, whole_.shape, OnGpu()));
    // Fixes the chunk size from here on, whatever the rCache becomes.
    if (options_->memory.chunk_size == kChunkByTraffic && whole_.layout.block_bytes > 0)
      options_->memory.chunk_size = std::to_string(whole_.layout.block_bytes);
    TP_RETURN_IF_ERROR(FindRoom(asked_));
    TP_ASSIGN_OR_RETURN(profile_, ProfileRun(whole_, *options_));
    order_ =
        ForeseeOrder(profile_.trace, whole_.layout, place_.rank, options_->training.micro_batches);
    return {};
  }

  Result<RcacheChoice> Search() const {
    TP_ASSIGN_OR_RETURN(const ChoiceTask task, Task());
    return ChooseRcache(task);
  }

  // If --chunk-size should suit the number of blocks just found: sets that size and returns true;
  // the caller calls Look again.
  bool SizesChunksFor(const RcacheChoice& choice) {
    if (asked_.chunk_size != kChunkByTraffic || limit_) return false;
    const uint64_t bytes = ChunkBytesByTraffic(whole_.layout, choice.allowed_bytes);
    if (bytes == 0) return false;
    options_->memory.chunk_size = std::to_string(bytes);
    return true;
  }

  Result<PlanChoice> Preset(const std::string& name) const {
    return ChoosePreset(name, Presets(), Limit(), Step());
  }

  PlanChoice WayOf(const RcacheChoice& choice) const {
    return {.way = WayWith(kAutoPlan, Exchange::kSharded, choice.share.blocks, Step()),
            .presets = Presets(),
            .limit = Limit()};
  }

  // With --dynamic-rcache: the blocks that there is room for beside no activations at all.
  uint64_t MostBlocks(const RcacheChoice& choice) const {
    const DeviceRoom& room = choice.room;
    const uint64_t taken = room.taken + room.resident + room.states + room.buffers;
    const uint64_t left = room.capacity - std::min(room.capacity, taken),
                   blocks = choice.block_bytes == 0 ? 0 : left / choice.block_bytes;
    return std::max(choice.share.blocks,
                    std::min(blocks, whole_.layout.EvictableChunks(place_.rank)));
  }

  uint64_t RcacheBytes(uint64_t blocks) const {
    return std::max(whole_.layout.RcacheBytes(place_.rank, blocks), kPageBytes);
  }

 private:
  // A preset needs no memory limit to plan with: without one it takes what it needs.
  Status FindRoom(const MemoryOptions& asked) {
    if (asked.rcache_given && asked.rcache != "auto") {
      TP_ASSIGN_OR_RETURN(const RcachePlan most,
                          PlanRcache(whole_.layout, place_.rank, asked.rcache));
      limit_ = RcacheLimit{most.bytes, "--rcache " + asked.rcache};
      return {};
    }
    const bool is_preset = !asked.plan.empty() && asked.plan != kAutoPlan;
    if (is_preset && asked.device_memory.empty()) return {};
    TP_ASSIGN_OR_RETURN(memory_, MemoryOf(asked, wish_, place_));
    return PlaceGpuStates(options_->memory, OnGpu() ? memory_->gpus : 0, &whole_);
  }

  // The limit by what is known; nullopt for a preset without one.
  std::optional<RcacheLimit> Limit() const {
    if (limit_ || !memory_) return limit_;
    DeviceRoom room = Room();
    room.resident = whole_.layout.ResidentBytes(place_.rank);
    room.buffers = profile_.buffer_bytes;
    room.activations = profile_.activation_bytes;
    return RcacheLimit{AllowedBytes(room) + room.resident,
                       "what is left of " + FormatBytes(room.capacity) + " (" + memory_->origin +
                           ") beside activations"};
  }

  DeviceRoom Room() const {
    DeviceRoom room;
    room.capacity = memory_->capacity;
    room.taken = memory_->taken;
    // On the host it takes no memory.
    room.spare = OnGpu() ? SpareBytes(whole_.layout) : 0;
    room.states = whole_.gpu_states.gpu_bytes / memory_->sharers;
    return room;
  }

  Result<ChoiceTask> Task() const {
    ChoiceTask task;
    task.layout = &whole_.layout;
    task.profile = &profile_;
    task.rank = place_.rank;
    task.micro_batches = options_->training.micro_batches;
    task.optimizer = whole_.spec.optimizer;
    task.device_updates = OnGpu();
    task.limit = limit_;

    if (memory_) {
      task.room = Room();
      task.room_origin = memory_->origin;
    }
    TP_RETURN_IF_ERROR(FindRatesFor(&task));
    return task;
  }

  // Rates of --rates, else memserver's measurements if they are from this machine.
  Status FindRatesFor(ChoiceTask* task) const {
    const RatesWanted wanted{.ranks = place_.world,
                             .machine = device::MachineFingerprint(),
                             .device = OnGpu() ? "cuda" : "cpu"};
    const std::string& file = options_->memory.rates_file;
    if (!file.empty()) {
      TP_ASSIGN_OR_RETURN(task->rates, ReadRatesHere(file, wanted));
      return {};
    }

    FoundRates found = FindRates(client::RatesPlace(options_->server.socket_dir), wanted);
    task->rates = std::move(found.rates);
    task->why_no_rates = std::move(found.why_not);
    return {};
  }

  bool OnGpu() const { return wish_.kind != DeviceWish::Kind::kCpu; }
  RankStep Step() const { return {&order_, &whole_.layout, place_.rank}; }
  std::vector<PlanWay> Presets() const { return PresetWays(Step(), options_->memory.prefetch); }

  RunOptions* const options_;
  const MemoryOptions asked_;
  const RankPlace& place_;
  DeviceWish wish_;
  RunPlan whole_;
  StepProfile profile_;
  AccessSchedule order_;
  std::optional<RcacheLimit> limit_;    // from --rcache
  std::optional<DeviceMemory> memory_;  // without a limit
};

}  // namespace

Result<Settlement> SettleRcache(RunOptions* options, const RankPlace& place) {
  const std::string plan = options->memory.plan;
  const bool searched = options->memory.rcache == "auto" || plan == kAutoPlan;
  // The stages of --pipeline are planned for a device's memory, too.
  if (!searched && plan.empty() && options->pipeline.stages.empty() &&
      !options->memory.device_memory.empty())
    return NoUse("--device-memory");
  if (!searched && !options->memory.rates_file.empty()) return NoUse("--rates");
  if (!searched && plan.empty()) return Settlement();

  Settler settler(options, place);
  TP_RETURN_IF_ERROR(settler.Look());
  Settlement settled;
  if (plan.empty() || plan == kAutoPlan) {
    TP_ASSIGN_OR_RETURN(settled.choice, settler.Search());

    if (settler.SizesChunksFor(*settled.choice)) {
      TP_RETURN_IF_ERROR(settler.Look());
      TP_ASSIGN_OR_RETURN(settled.choice, settler.Search());
    }

    uint64_t blocks = settled.choice->share.blocks;
    if (options->memory.dynamic_rcache)
      blocks = settled.choice->dynamic_blocks = settler.MostBlocks(*settled.choice);
    options->memory.rcache = std::to_string(settler.RcacheBytes(blocks));
    if (!plan.empty()) settled.way = settler.WayOf(*settled.choice);
    return settled;
  }

  TP_ASSIGN_OR_RETURN(settled.way, settler.Preset(plan));
  options->memory.rcache = std::to_string(settled.way->way.rcache_bytes);
  return settled;
}

}  // namespace tidepool::trainer

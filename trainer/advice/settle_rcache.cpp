#include "trainer/advice/settle_rcache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"
#include "device/gpu_list.h"
#include "trainer/advice/device_memory.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kWhole = "100%";  // any size does for a layout

Status NoUse(const std::string& flag) {
  return Status(ErrorId::kUsageError, flag + " says nothing without --rcache auto")
      .Where("command line of trainer")
      .Fix("add --rcache auto, or leave " + flag + " out");
}

Status NoMemoryKnown(const std::string& why) {
  return Status(ErrorId::kUsageError, "--rcache auto has no device memory to plan with: " + why)
      .Where("--rcache auto")
      .Fix(
          "give --device-memory SIZE: what one rank may use of its GPU, or with --device cpu of "
          "the host's memory");
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
  task.sequences = std::max<uint64_t>(1, options.data.batch / plan.layout.world);
  task.tokens = options.data.context > 0 ? options.data.context : plan.shape.context;
  task.checkpointing = options.model.activation_checkpointing;
  task.stage_ends = options.pipeline.ends;
  task.micro_batches = options.training.micro_batches;
  TP_ASSIGN_OR_RETURN(StepProfile profile, ProfileStep(task));
  if (options.model.offload_activations && plan.shape.layers > 2) {
    // The inputs of two blocks are on the device at a time (trainer/model/activation_store.h).
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

Result<std::optional<RcacheChoice>> SettleRcache(RunOptions* options, const RankPlace& place) {
  if (options->memory.rcache != "auto") {
    // The stages of --pipeline are planned for it.
    if (!options->memory.device_memory.empty() && options->pipeline.stages.empty())
      return NoUse("--device-memory");
    if (!options->memory.rates_file.empty()) return NoUse("--rates");
    return std::optional<RcacheChoice>();
  }

  TP_ASSIGN_OR_RETURN(const DeviceWish wish, ParseDeviceWish(options->device.name));
  options->memory.rcache = kWhole;
  TP_ASSIGN_OR_RETURN(RunPlan whole, MakeRunPlan(*options, place.world, place.rank, "auto"));
  TP_ASSIGN_OR_RETURN(const DeviceMemory memory, MemoryOf(options->memory, wish, place));
  TP_ASSIGN_OR_RETURN(const StepProfile profile, ProfileRun(whole, *options));

  ChoiceTask task;
  task.layout = &whole.layout;
  task.profile = &profile;
  task.rank = place.rank;
  task.micro_batches = options->training.micro_batches;
  task.optimizer = whole.spec.optimizer;
  task.device_updates = wish.kind != DeviceWish::Kind::kCpu;
  task.room.capacity = memory.capacity;
  task.room.taken = memory.taken;
  // The host's takes no memory.
  task.room.spare = task.device_updates ? SpareBytes(whole.layout) : 0;
  TP_RETURN_IF_ERROR(
      PlaceGpuStates(options->memory, task.device_updates ? memory.gpus : 0, &whole));
  task.room.states = whole.gpu_states.gpu_bytes / memory.sharers;
  task.room_origin = memory.origin;

  if (!options->memory.rates_file.empty()) {
    TP_ASSIGN_OR_RETURN(task.rates, ReadRates(options->memory.rates_file, place.world));
  }

  TP_ASSIGN_OR_RETURN(RcacheChoice choice, ChooseRcache(task));
  options->memory.rcache = std::to_string(
      std::max(whole.layout.RcacheBytes(place.rank, choice.share.blocks), kPageBytes));
  return std::optional(std::move(choice));
}

}  // namespace tidepool::trainer

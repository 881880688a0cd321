// SettleRcache: turns --rcache auto and --plan into a size: queries the device's memory, profiles a
// step, and searches.
//
// The trainer's main thread, before anything is started. Does nothing if neither flag is given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "device/cuda/cuda_device.h"
#include "trainer/launch/rank_place.h"
#include "trainer/advice/device_place.h"
#include "trainer/advice/plan_choice.h"
#include "trainer/advice/rcache_choice.h"
#include "trainer/profile/step_profile.h"
#include "trainer/run/run_options.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// The origin of a size.
struct Settlement {
  std::optional<RcacheChoice> choice;  // if it was searched
  std::optional<PlanChoice> way;       // if --plan was given
};

// Writes the chosen size to options->memory.rcache and returns its origin; empty if --rcache is not
// auto and --plan was not given. With --plan, a size or share of --rcache is a limit, and so is
// --device-memory. All ranks of a job must choose the same size, but their GPUs may differ in free
// memory: with several ranks, auto needs one of the two flags. Errors: kUsageError (a flag without
// meaning unless auto; no such plan; no memory to plan with; --dynamic-rcache where blocks cannot
// change), kConfigBadValue, kRcacheTooSmall
// (with all numbers), and those of MakeRunPlan, ReadRates, ProfileStep and ChooseDevice.
Result<Settlement> SettleRcache(RunOptions* options, const RankPlace& place);

// The device memory that one rank may plan with.
struct DeviceMemory {
  uint64_t capacity = 0, taken = 0;
  std::string origin;
  uint32_t gpus = 1, sharers = 1;  // GPUs used by the ranks; ranks per GPU
};

// The driver's data on the GPU that this rank would get. Errors: kUsageError (no GPU is here, or it
// cannot be used or opened), those of ChooseDevice.
Result<DeviceMemory> AskGpu(const DeviceWish& wish, const RankPlace& place);

// Memory use of one micro-batch of a rank, and the order in which it uses parameters; equal on all
// ranks of a run. Errors: those of ProfileStep.
Result<StepProfile> ProfileRun(const RunPlan& plan, const RunOptions& options);

// Use of the GPU, our context included; nullopt if it cannot be opened.
std::optional<device::DeviceBytes> BytesNow(int ordinal);

}  // namespace tidepool::trainer

// SettleRcache: turns --rcache auto and --plan into a size: asks the device for its memory,
// profiles a step, and searches.
//
// The trainer's main thread, before anything is started. Without either it does nothing.
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

// How a size came about.
struct Settlement {
  std::optional<RcacheChoice> choice;  // where it was searched
  std::optional<PlanChoice> way;       // where --plan was given
};

// Writes the chosen size over options->memory.rcache and returns how it came about; nothing where
// --rcache is not auto and no --plan was given. With --plan, a size or share of --rcache is the
// most that it may take, and --device-memory likewise. Ranks of one job must come to the same
// size, and what each finds in use on its GPU may differ: with several ranks one of the two has to
// be given to auto.
// Errors: kUsageError (a flag that says nothing without auto; no such plan; no memory to plan
// with), kConfigBadValue, kRcacheTooSmall (with all numbers), and those of MakeRunPlan, ReadRates,
// ProfileStep and ChooseDevice.
Result<Settlement> SettleRcache(RunOptions* options, const RankPlace& place);

// What one rank may plan with of its device.
struct DeviceMemory {
  uint64_t capacity = 0, taken = 0;
  std::string origin;
  uint32_t gpus = 1, sharers = 1;  // that the ranks are spread over; ranks on one
};

// What the driver says of the GPU that this rank would have. Errors: kUsageError (no GPU is here,
// can be used or be opened), those of ChooseDevice.
Result<DeviceMemory> AskGpu(const DeviceWish& wish, const RankPlace& place);

// What one micro-batch of a rank takes and in which order it uses parameters; the same on all ranks
// of a run. Errors: those of ProfileStep.
Result<StepProfile> ProfileRun(const RunPlan& plan, const RunOptions& options);

// Bytes of the GPU with a context of ours on it; none where it cannot be opened.
std::optional<device::DeviceBytes> BytesNow(int ordinal);

}  // namespace tidepool::trainer

// SettleRcache: turns --rcache auto into a size: asks the device for its memory, profiles a step,
// and searches.
//
// The trainer's main thread, before anything is started. Without auto it does nothing.
#pragma once

#include <optional>

#include "base/status.h"
#include "device/cuda/cuda_device.h"
#include "trainer/launch/rank_place.h"
#include "trainer/advice/rcache_choice.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// Writes the chosen size over options->memory.rcache and returns how it came about; nothing where
// --rcache is not auto. Ranks of one job must come to the same size, and what each finds in use on
// its GPU may differ: with several ranks --device-memory has to be given.
// Errors: kUsageError (a flag that says nothing without auto; no memory to plan with),
// kConfigBadValue, kRcacheTooSmall (with all numbers), and those of MakeRunPlan, ReadRates,
// ProfileStep and ChooseDevice.
Result<std::optional<RcacheChoice>> SettleRcache(RunOptions* options, const RankPlace& place);

// Bytes of the GPU with a context of ours on it; none where it cannot be opened.
std::optional<device::DeviceBytes> BytesNow(int ordinal);

}  // namespace tidepool::trainer

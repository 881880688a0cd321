// DevicePlace: the device of a rank, chosen from --device, the rank's place on its node and the
// GPUs that the driver reports.
//
// Any thread; pure functions, torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/gpu_list.h"
#include "trainer/launch/rank_place.h"

namespace tidepool::trainer {

// --device: cpu, cuda (by local rank), cuda:N, auto (cuda if usable, else cpu).
struct DeviceWish {
  enum class Kind : uint8_t { kCpu, kCuda, kAuto };
  Kind kind = Kind::kCpu;
  std::optional<uint32_t> ordinal;  // cuda:N
};

// Errors: kUsageError.
Result<DeviceWish> ParseDeviceWish(const std::string& text);

struct DevicePlace {
  std::optional<device::Gpu> gpu;  // nullopt: the host
  uint32_t sharers = 1;            // ranks of this node on that GPU, including this one
  // Number of GPUs among which this node's ranks are divided; 0: the host.
  uint32_t gpus = 0;
  std::string why;  // for the banner
};

// `gpus`: the result of device::ListGpus; used only if a GPU is requested. Ranks may share a GPU:
// local rank r gets GPU r modulo their number, or all get the one that was named. Errors:
// kCudaUnavailable (cuda was requested, and no such GPU exists or it lacks a needed feature).
Result<DevicePlace> ChooseDevice(const DeviceWish& wish, const RankPlace& place,
                                 const Result<std::vector<device::Gpu>>& gpus);

// The host, because of `why_not`: the choice of auto when the GPU cannot be used.
DevicePlace HostInstead(const Status& why_not);

// "cuda:1, NVIDIA H200 (GPU-...), shared by 2 ranks of this node; local rank 3 of 4 takes GPU 3 mod
// 2".
std::string Describe(const DevicePlace& place);

}  // namespace tidepool::trainer

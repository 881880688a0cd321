// DevicePlace: on which device a rank computes: what --device asks for, the rank's place on its
// node and the GPUs that the driver shows decide.
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

// --device: cpu, cuda (the local rank chooses), cuda:N, auto (cuda where it can be used, else cpu).
struct DeviceWish {
  enum class Kind : uint8_t { kCpu, kCuda, kAuto };
  Kind kind = Kind::kCpu;
  std::optional<uint32_t> ordinal;  // cuda:N
};

// Errors: kUsageError.
Result<DeviceWish> ParseDeviceWish(const std::string& text);

struct DevicePlace {
  std::optional<device::Gpu> gpu;  // none: the host
  uint32_t sharers = 1;            // ranks of this node on that GPU, this one included
  // Number of GPUs that this node's ranks are spread over, as seen from here; 0: the host.
  uint32_t gpus = 0;
  std::string why;  // for the start lines
};

// `gpus`: what device::ListGpus says; looked at only where a GPU is wished for. Several ranks may
// share a GPU: local rank r has the GPU r modulo their number, or all have the one that was named.
// Errors: kCudaUnavailable (cuda was asked for, and there is no such GPU or it lacks what is
// needed).
Result<DevicePlace> ChooseDevice(const DeviceWish& wish, const RankPlace& place,
                                 const Result<std::vector<device::Gpu>>& gpus);

// The host instead of a GPU, because of `why_not`: what auto chooses when the GPU cannot be used.
DevicePlace HostInstead(const Status& why_not);

// "cuda:1, NVIDIA H200 (GPU-...), shared by 2 ranks of this node; local rank 3 of 4 takes GPU 3 mod
// 2".
std::string Describe(const DevicePlace& place);

}  // namespace tidepool::trainer

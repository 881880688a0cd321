#include "trainer/advice/device_place.h"

#include <algorithm>
#include <charconv>

namespace tidepool::trainer {
namespace {

constexpr std::string_view kCudaPrefix = "cuda:";

Status Unavailable(const std::string& what) {
  return Status(ErrorId::kCudaUnavailable, what).Where("--device");
}

uint32_t SharersOf(const DeviceWish& wish, const RankPlace& place, uint32_t ordinal,
                   uint32_t gpus) {
  if (wish.ordinal) return place.local_world;
  uint32_t sharers = 0;
  for (uint32_t rank = 0; rank < place.local_world; ++rank)
    sharers += rank % gpus == ordinal ? 1 : 0;
  return sharers;
}

Result<DevicePlace> ChooseGpu(const DeviceWish& wish, const RankPlace& place,
                              const std::vector<device::Gpu>& gpus) {
  const auto count = static_cast<uint32_t>(gpus.size());
  const uint32_t ordinal = wish.ordinal.value_or(place.local_rank % count);
  if (ordinal >= count) {
    return Unavailable("there is no GPU " + std::to_string(ordinal) + ": the driver shows " +
                       std::to_string(count))
        .Fix("give an ordinal below " + std::to_string(count) +
             ", counted among CUDA_VISIBLE_DEVICES, or --device cuda");
  }

  DevicePlace chosen{.gpu = gpus[ordinal],
                     .sharers = SharersOf(wish, place, ordinal, count),
                     .gpus = wish.ordinal ? 1 : std::min(count, place.local_world),
                     .why = {}};
  if (!gpus[ordinal].wait_value64) {
    return Unavailable("GPU " + std::to_string(ordinal) + " (" + gpus[ordinal].name +
                       ") cannot wait for 64-bit flags in its streams")
        .Why("trainer and memserver order their copies by such flags");
  }

  if (wish.ordinal) {
    chosen.why = "--device names it";
  } else {
    chosen.why = "local rank " + std::to_string(place.local_rank) + " of " +
                 std::to_string(place.local_world) + " takes GPU " +
                 std::to_string(place.local_rank) + " mod " + std::to_string(count);
  }
  return chosen;
}

}  // namespace

Result<DeviceWish> ParseDeviceWish(const std::string& text) {
  using Kind = DeviceWish::Kind;
  if (text == "cpu") return DeviceWish{Kind::kCpu, {}};
  if (text == "auto") return DeviceWish{Kind::kAuto, {}};
  if (text == "cuda") return DeviceWish{Kind::kCuda, {}};

  if (text.starts_with(kCudaPrefix)) {
    uint32_t ordinal = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + kCudaPrefix.size(), end, ordinal);
    if (error == std::errc() && stop == end) return DeviceWish{Kind::kCuda, ordinal};
  }

  return Status(ErrorId::kUsageError, "--device \"" + text + "\" is no device")
      .Where("command line of trainer")
      .Fix("give cpu, cuda, cuda:N (such as cuda:0), or auto");
}

Result<DevicePlace> ChooseDevice(const DeviceWish& wish, const RankPlace& place,
                                 const Result<std::vector<device::Gpu>>& gpus) {
  if (wish.kind == DeviceWish::Kind::kCpu)
    return DevicePlace{.gpu = {}, .sharers = 1, .gpus = 0, .why = "--device cpu"};
  Result<DevicePlace> chosen = gpus.ok() && !gpus.value().empty()
                                   ? ChooseGpu(wish, place, gpus.value())
                               : gpus.ok() ? Unavailable("the driver shows no GPU")
                                           : Status(gpus.status()).Where("--device");
  if (chosen.ok() || wish.kind == DeviceWish::Kind::kCuda) return chosen;
  return HostInstead(chosen.status());
}

DevicePlace HostInstead(const Status& why_not) {
  return {.gpu = {},
          .sharers = 1,
          .gpus = 0,
          .why = "--device auto found no GPU that can be used: " + why_not.what()};
}

std::string Describe(const DevicePlace& place) {
  if (!place.gpu) return "cpu; " + place.why;
  std::string text = "cuda:" + std::to_string(place.gpu->ordinal) + ", " + place.gpu->name + " (" +
                     device::Text(place.gpu->uuid) + ")";
  if (place.sharers > 1)
    text += ", shared by " + std::to_string(place.sharers) + " ranks of this node";
  return text + "; " + place.why;
}

}  // namespace tidepool::trainer

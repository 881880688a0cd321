#include "optim/kernels/isa.h"

#include <array>
#include <string>

namespace tidepool::optim {
namespace {

constexpr std::array<const char*, 4> kNames = {"scalar", "v2", "v3", "v4"};

}  // namespace

IsaLevel BestIsa() {
  // The marker features of each level; __builtin_cpu_supports also checks that the operating system
  // saves the wide registers.
  __builtin_cpu_init();
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") &&
                  __builtin_cpu_supports("popcnt");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v4) return IsaLevel::kV4;
  if (v3) return IsaLevel::kV3;
  return v2 ? IsaLevel::kV2 : IsaLevel::kScalarReference;
}

Result<IsaLevel> IsaFromName(std::string_view name) {
  if (name == "auto") return BestIsa();
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<IsaLevel>(i);
  }
  return Status(ErrorId::kConfigBadValue, "unknown instruction set \"" + std::string(name) + "\"")
      .Fix("give auto, v2, v3, v4 or scalar");
}

const char* NameOf(IsaLevel level) {
  return kNames[static_cast<size_t>(level)];
}

}  // namespace tidepool::optim

// IsaLevel: the instruction set of the update loops, detected at start or given by the user.
//
// Any thread; pure functions of the CPU. Every level computes the same bits (see
// optim/kernels/kernels.h), so the choice affects only speed, and two runs that are compared may be
// on different machines.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace tidepool::optim {

// In ascending order: a CPU that has a level has all lower ones.
enum class IsaLevel : uint8_t {
  kScalarReference,  // plain independent code, the reference for the others
  kV2,               // x86-64-v2: SSE4.2, 4 floats
  kV3,               // x86-64-v3: AVX2, 8 floats
  kV4,               // x86-64-v4: AVX-512 F, BW, CD, DQ, VL, 16 floats
};

// The highest level of this CPU and its operating system; kScalarReference on a CPU older than
// x86-64-v2.
IsaLevel BestIsa();
// Parses "auto" (BestIsa), "scalar", "v2", "v3" or "v4"; does not check the CPU. Errors:
// kConfigBadValue for any other text.
Result<IsaLevel> IsaFromName(std::string_view name);
// "scalar", "v2", "v3" or "v4".
const char* NameOf(IsaLevel level);

}  // namespace tidepool::optim

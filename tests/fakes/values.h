// Values for tests: weights and gradients as pure functions of their place, exact in fp32, bf16 and
// fp16; and arrays of a DType.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/random.h"
#include "optim/kernels/kernels.h"

namespace tidepool::memserver {

// A multiple of 1/64 in [-1, 1): exact in every type, and sums of a few of them too.
inline float ValueAt(uint64_t seed, uint64_t a, uint64_t b) {
  SplitMix64 random(seed * 0x9e3779b97f4a7c15 + a * 1000003 + b);
  return static_cast<float>(static_cast<int64_t>(random.Below(128)) - 64) / 64.0F;
}

inline const optim::Kernels& ReferenceKernels() {
  return optim::SelectKernels(optim::IsaLevel::kScalarReference);
}

// Writes `values` as elements of `dtype`.
inline void Encode(DType dtype, const std::vector<float>& values, void* to) {
  if (dtype == DType::kF32) {
    float* floats = static_cast<float*>(to);
    for (size_t i = 0; i < values.size(); ++i) floats[i] = values[i];
  } else {
    ReferenceKernels().narrow(to, dtype, values.data(), values.size());
  }
}

inline std::vector<float> Decode(DType dtype, const void* from, uint64_t count) {
  std::vector<float> values(count);
  ReferenceKernels().widen(values.data(), from, dtype, count);
  return values;
}

}  // namespace tidepool::memserver

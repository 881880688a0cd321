// DType: the element types of parameters and gradients, and of uninterpreted bytes.
//
// Any thread. The numbers are part of the wire format (docs/shm_protocol.md): never change them.
#pragma once

#include <cstdint>

namespace tidepool {

enum class DType : uint8_t {
  kF32 = 0,
  kBF16 = 1,
  kF16 = 2,
  kRaw = 3,  // one byte: only for frozen chunks, such as quantised weights
};

// Bytes of one element.
inline constexpr uint64_t BytesOf(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kRaw ? 1 : 2;
}
// True if a number from outside is one of the four; and if it is one of those that can be trained.
inline constexpr bool IsDType(uint32_t raw) {
  return raw <= 3;
}
inline constexpr bool IsTrainedDType(uint32_t raw) {
  return raw <= 2;
}
// "fp32", "bf16", "fp16" or "raw".
inline constexpr const char* NameOf(DType dtype) {
  constexpr const char* kNames[]{"fp32", "bf16", "fp16", "raw"};
  return kNames[static_cast<uint8_t>(dtype) & 3];
}

}  // namespace tidepool

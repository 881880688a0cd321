// DType: the element types of parameters and gradients.
//
// Any thread. The numbers are part of the wire format (docs/shm_protocol.md): never change them.
#pragma once

#include <cstdint>

namespace tidepool {

enum class DType : uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2 };

// Bytes of one element.
inline constexpr uint64_t BytesOf(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}
// True where a number from outside is one of the three.
inline constexpr bool IsDType(uint32_t raw) {
  return raw <= 2;
}
// "fp32", "bf16" or "fp16".
inline constexpr const char* NameOf(DType dtype) {
  return dtype == DType::kF32 ? "fp32" : dtype == DType::kBF16 ? "bf16" : "fp16";
}

}  // namespace tidepool

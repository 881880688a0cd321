#include "optim/kernels/state_scalar.h"

#include <bit>
#include <cmath>
#include <limits>

namespace tidepool::optim {
namespace {

constexpr float kRandomUnit = 1.0F / 65536.0F;

// `value` in [-limit, limit]; NaN counts as `limit`.
float Bounded(float value, float limit) {
  if (std::isnan(value) || value >= limit) return limit;
  return value <= -limit ? -limit : value;
}

}  // namespace

uint32_t Random16Of(uint64_t key, uint64_t index) {
  uint32_t x = static_cast<uint32_t>(index / 2) + static_cast<uint32_t>(key);
  x ^= x >> 16;
  x *= 0x7feb352d;
  x ^= x >> 15;
  x += static_cast<uint32_t>(key >> 32);
  x *= 0x846ca68b;
  x ^= x >> 16;
  return index % 2 == 0 ? x & 0xFFFF : x >> 16;
}

uint16_t NarrowToBf16Randomly(float value, uint32_t random16) {
  if (std::isnan(value)) return 0x7FC0;
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + random16) >> 16);
}

float InverseScale(float scale) {
  return scale >= std::numeric_limits<float>::min() ? 1.0F / scale : 0.0F;
}

int8_t MomentumCode(float momentum, float inverse, uint32_t random16) {
  const float x = momentum * inverse;
  const float z = 2.0F * x / (1.0F + std::fabs(x));
  // Positive, so that truncation rounds down.
  const float above = Bounded(z * 127.0F, 127.0F) + 128.0F;
  return static_cast<int8_t>(static_cast<int>(above + static_cast<float>(random16) * kRandomUnit) -
                             128);
}

float MomentumOf(int8_t code, float scale) {
  if (code == 0) return 0;
  const float z = static_cast<float>(code) * (1.0F / 127.0F);
  return z / (2.0F - std::fabs(z)) * scale;
}

uint8_t RootCode(float root, float inverse, uint32_t random16) {
  const float steps = Bounded(root * inverse * 255.0F, 255.0F);
  const int code = static_cast<int>(steps + static_cast<float>(random16) * kRandomUnit);
  return static_cast<uint8_t>(code == 0 && root > 0 ? 1 : code);
}

float RootOf(uint8_t code, float scale) {
  return code == 0 ? 0 : static_cast<float>(code) * (scale * (1.0F / 255.0F));
}

}  // namespace tidepool::optim

// The loops of memory_loops.h, compiled once per instruction set (memory_loops_v3.cpp,
// memory_loops_v4.cpp).
//
// Everything has internal linkage: the linker must never merge two copies of an inline function
// compiled for different CPUs.
#pragma once

#include <immintrin.h>

#include "bench/loops/memory_loops.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kLine = 64;
// Four cache lines per iteration, in vectors as wide as the level has.
#if defined(__AVX512F__)
using Vector = __m512i;
#else
using Vector = __m256i;
#endif
constexpr uint64_t kVectors = 4 * kLine / sizeof(Vector);
constexpr uint64_t kTurn = 4 * kLine;

Vector Load(const std::byte* from) {
  Vector value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
void Store(std::byte* to, Vector value) {
  __builtin_memcpy(to, &value, sizeof value);
}
void Stream(std::byte* to, Vector value) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value);
#else
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), value);
#endif
}

void Prefetch(const std::byte* from) {
  for (uint64_t line = 0; line < kTurn; line += kLine)
    _mm_prefetch(reinterpret_cast<const char*>(from + line), _MM_HINT_T0);
}

uint64_t Read(const std::byte* from, uint64_t bytes) {
  Vector sums[kVectors] = {};
  for (uint64_t at = 0; at + kTurn <= bytes; at += kTurn) {
    Prefetch(from + at + 16 * kLine);
    for (uint64_t i = 0; i < kVectors; ++i)
      sums[i] = sums[i] + Load(from + at + i * sizeof(Vector));
  }

  uint64_t sum = 0;
  for (const Vector& part : sums) {
    for (uint64_t i = 0; i < sizeof(Vector) / 8; ++i) sum += static_cast<uint64_t>(part[i]);
  }
  return sum;
}

template <bool kPrefetch>
void ModifyLoop(std::byte* data, uint64_t bytes, uint64_t ahead) {
  const Vector one = Vector{} + 1;
  for (uint64_t at = 0; at + kTurn <= bytes; at += kTurn) {
    if constexpr (kPrefetch) Prefetch(data + at + ahead);
    for (uint64_t i = 0; i < kVectors; ++i) {
      std::byte* place = data + at + i * sizeof(Vector);
      Store(place, Load(place) ^ one);
    }
  }
}

void Modify(std::byte* data, uint64_t bytes, uint64_t ahead) {
  ahead == 0 ? ModifyLoop<false>(data, bytes, 0) : ModifyLoop<true>(data, bytes, ahead);
}

void CopyPlain(std::byte* to, const std::byte* from, uint64_t bytes) {
  uint64_t at = 0;
  for (; at + kTurn <= bytes; at += kTurn) {
    for (uint64_t i = 0; i < kVectors; ++i)
      Store(to + at + i * sizeof(Vector), Load(from + at + i * sizeof(Vector)));
  }
  __builtin_memcpy(to + at, from + at, bytes - at);
}

void CopyStreaming(std::byte* to, const std::byte* from, uint64_t bytes, uint64_t ahead) {
  uint64_t at = 0;
  for (; at + kTurn <= bytes; at += kTurn) {
    if (ahead > 0) Prefetch(from + at + ahead);
    for (uint64_t i = 0; i < kVectors; ++i)
      Stream(to + at + i * sizeof(Vector), Load(from + at + i * sizeof(Vector)));
  }
  __builtin_memcpy(to + at, from + at, bytes - at);
  _mm_sfence();
}

void Scale(float* values, float factor, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) values[i] *= factor;
}

void Adam(const PeerAdam& numbers, float* const* planes, const float* gradient, uint64_t count) {
  const PeerAdam n = numbers;
  const float left1 = 1 - n.beta1, left2 = 1 - n.beta2;
  float *const master = planes[0], *const momentum = planes[1], *const variance = planes[2];

#pragma GCC ivdep
  for (uint64_t i = 0; i < count; ++i) {
    const float g = gradient[i];
    float p = master[i];
    const float m = momentum[i] * n.beta1 + g * left1;
    const float v = variance[i] * n.beta2 + g * g * left2;
    p = p + n.weight_step * p;
    master[i] = p + n.step_size * (m / (__builtin_sqrtf(v) * n.inverse_sqrt_bias2 + n.eps));
    momentum[i] = m;
    variance[i] = v;
  }
}

void Narrow(uint16_t* to, const float* from, uint64_t count) {
#pragma GCC ivdep
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, from[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
}

constexpr MemoryLoops LoopsOf(optim::IsaLevel isa) {
  return {.isa = isa,
          .read = Read,
          .modify = Modify,
          .copy_plain = CopyPlain,
          .copy_streaming = CopyStreaming,
          .scale = Scale,
          .adam = Adam,
          .narrow = Narrow};
}

}  // namespace
}  // namespace tidepool::bench

// The scan, accumulation and conversion loops, written once and compiled for each instruction set
// (see element_types.h for the rule about what they may contain).
//
// The scan keeps its 16 lanes in as many registers as the level needs; a lane sees the same
// additions in the same order on all of them.
#pragma once

#include "optim/kernels/element_types.h"
#include "optim/gradient_norm.h"
#include "optim/kernels/kernels.h"

namespace tidepool::optim {
namespace {

static_assert(kScanLanes == 16 && kScanBlockElements % kScanLanes == 0);
constexpr uint64_t kRegisterBytes = __BIGGEST_ALIGNMENT__;  // 16 on v2, 32 on v3, 64 on v4
constexpr uint64_t kRegisterDoubles = kRegisterBytes / sizeof(double);
constexpr uint64_t kScanRegisters = kScanLanes / kRegisterDoubles;
using FloatRegister = float __attribute__((vector_size(kRegisterBytes)));
using FloatHalf = float __attribute__((vector_size(kRegisterBytes / 2)));
using DoubleRegister = double __attribute__((vector_size(kRegisterBytes)));

// Copies through registers: for the 1 KiB pieces of an undo area this is faster than memcpy, which
// first selects a method.
void Copy(void* to, const void* from, uint64_t bytes) {
  auto* const target = static_cast<unsigned char*>(to);
  const auto* const source = static_cast<const unsigned char*>(from);
  uint64_t i = 0;
#pragma GCC unroll 4
  for (; i + kRegisterBytes <= bytes; i += kRegisterBytes) {
    FloatRegister some;
    __builtin_memcpy(&some, source + i, kRegisterBytes);
    __builtin_memcpy(target + i, &some, kRegisterBytes);
  }
  for (; i < bytes; ++i) target[i] = source[i];
}

template <typename From>
void WidenLoop(float* __restrict to, const void* from, uint64_t count) {
  const typename From::Stored* __restrict source = static_cast<const typename From::Stored*>(from);
  for (uint64_t i = 0; i < count; ++i) to[i] = From::Widen(source[i]);
}

template <typename To>
void NarrowLoop(void* to, const float* __restrict from, uint64_t count) {
  uint16_t* __restrict target = static_cast<uint16_t*>(to);
  for (uint64_t i = 0; i < count; ++i) target[i] = To::Narrow(from[i]);
}

template <typename From>
void AccumulateLoop(float* __restrict sum, const void* addend, uint64_t count) {
  const typename From::Stored* __restrict source =
      static_cast<const typename From::Stored*>(addend);
  for (uint64_t i = 0; i < count; ++i) sum[i] += From::Widen(source[i]);
}

// Sum of squares of rows * 16 floats.
double SumSquares(const float* from, uint64_t rows) {
  DoubleRegister sums[kScanRegisters] = {};
  for (uint64_t row = 0; row < rows; ++row, from += kScanLanes) {
#pragma GCC unroll 8
    for (uint64_t i = 0; i < kScanRegisters; ++i) {
      FloatHalf elements;
      __builtin_memcpy(&elements, from + i * kRegisterDoubles, sizeof(elements));
      const DoubleRegister wide = __builtin_convertvector(elements, DoubleRegister);
      sums[i] += wide * wide;
    }
  }

  double lanes[kScanLanes];
  __builtin_memcpy(lanes, sums, sizeof(lanes));
  for (uint64_t distance = kScanLanes / 2; distance > 0; distance /= 2) {
    for (uint64_t lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
  }
  return lanes[0];
}

// One block of at most kScanBlockElements; a short row is filled with zeros, which add nothing.
template <typename From>
double BlockSumSquares(const typename From::Stored* from, uint64_t count) {
  alignas(64) float block[kScanBlockElements];
  const uint64_t rows = (count + kScanLanes - 1) / kScanLanes;
  if constexpr (__is_same(From, F32Element)) {
    if (count % kScanLanes == 0) return SumSquares(from, rows);
  }
  WidenLoop<From>(block, from, count);
  for (uint64_t i = count; i < rows * kScanLanes; ++i) block[i] = 0;
  return SumSquares(block, rows);
}

template <typename From>
ScanResult ScanLoop(const void* gradient, uint64_t count) {
  const typename From::Stored* from = static_cast<const typename From::Stored*>(gradient);
  double sum = 0;
  for (uint64_t first = 0; first < count; first += kScanBlockElements) {
    const uint64_t left = count - first;
    sum +=
        BlockSumSquares<From>(from + first, left < kScanBlockElements ? left : kScanBlockElements);
  }
  // The square of a finite fp32 is below 2^256, so a sum of fewer than 2^700 of them is finite
  // exactly if every element is.
  const bool finite = sum < __builtin_inf();
  return {finite ? sum : __builtin_inf(), finite};
}

ScanResult Scan(const void* gradient, DType dtype, uint64_t count) {
  if (dtype == DType::kF32) return ScanLoop<F32Element>(gradient, count);
  return dtype == DType::kBF16 ? ScanLoop<Bf16Element>(gradient, count)
                               : ScanLoop<F16Element>(gradient, count);
}

void Accumulate(float* sum, const void* addend, DType dtype, uint64_t count) {
  if (dtype == DType::kF32) return AccumulateLoop<F32Element>(sum, addend, count);
  return dtype == DType::kBF16 ? AccumulateLoop<Bf16Element>(sum, addend, count)
                               : AccumulateLoop<F16Element>(sum, addend, count);
}

void Narrow(void* to, DType to_dtype, const float* from, uint64_t count) {
  return to_dtype == DType::kBF16 ? NarrowLoop<Bf16Element>(to, from, count)
                                  : NarrowLoop<F16Element>(to, from, count);
}

void Widen(float* to, const void* from, DType from_dtype, uint64_t count) {
  if (from_dtype == DType::kF32) return WidenLoop<F32Element>(to, from, count);
  return from_dtype == DType::kBF16 ? WidenLoop<Bf16Element>(to, from, count)
                                    : WidenLoop<F16Element>(to, from, count);
}

}  // namespace
}  // namespace tidepool::optim

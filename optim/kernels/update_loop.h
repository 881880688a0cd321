// The update loop, written once and compiled for each instruction set (see element_types.h for the
// rule about what it may contain).
//
// It processes blocks of 64 elements, whole cache lines of every plane. A last, shorter block is
// processed in a copy whose other elements are zero: they cannot change a neighbour (a zero is
// never the largest of a scale block), so every element is computed by the same instructions.
// Prefetching gains 10 to 25 % on arrays far larger than the caches, and hides most of the cost of
// saving in the crash-safe form (undo_tile.h): while one tile is computed, the next one arrives.
#pragma once

#include "optim/kernels/kernels.h"
#include "optim/state_forms.h"

namespace tidepool::optim {
namespace {

constexpr uint64_t kLineBytes = 64;

// Prefetches kBlockElements of `bytes` each. They may lie past the plane: a prefetch never faults.
template <uint64_t bytes>
__attribute__((always_inline)) inline void PrefetchBlock(const void* plane, uint64_t element) {
  const char* line = static_cast<const char*>(plane) + element * bytes;
#pragma GCC unroll 4
  for (uint64_t offset = 0; offset < kBlockElements * bytes; offset += kLineBytes)
    __builtin_prefetch(line + offset);
}

// Copies `bytes`, which fill whole 8-byte words of the area.
template <uint64_t bytes>
__attribute__((always_inline)) inline void SavePlane(char** to, const void* from) {
  using Line = unsigned char __attribute__((vector_size(kLineBytes), aligned(1), may_alias));
  if constexpr (bytes % kLineBytes == 0) {
#pragma GCC unroll 4
    for (uint64_t i = 0; i < bytes / kLineBytes; ++i)
      reinterpret_cast<Line*>(*to)[i] = static_cast<const Line*>(from)[i];
  } else {
    __builtin_memcpy(*to, from, bytes);
  }
  *to += bytes;
}

// A killed thread has done its stores in program order, so only the compiler must keep the order
// (undo_tile.cpp).
__attribute__((always_inline)) inline void StoreForKill(uint64_t* word, uint64_t value) {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

// Copies of the planes of a last, short block.
struct ShortBlock {
  alignas(64) unsigned char master[kBlockElements * 4];
  alignas(64) unsigned char momentum[kBlockElements * 4];
  alignas(64) unsigned char variance[kBlockElements * 4];
  alignas(64) unsigned char gradient[kBlockElements * 4];
  alignas(64) unsigned char param16[kBlockElements * 2];
  float momentum_scales[2];
  float variance_scales[2];
};

template <typename Gradient, typename Form, typename Rule>
struct UpdateLoop {
  using Master = typename Form::Master;
  static constexpr uint64_t kGradientBytes = sizeof(typename Gradient::Stored);
  static constexpr uint64_t kMBytes = Rule::kMomentum ? Form::kMomentBytes : 0;
  static constexpr uint64_t kVBytes = Rule::kVariance ? Form::kMomentBytes : 0;

  __attribute__((always_inline)) static inline Block At(const UpdateSpan& s, uint64_t first) {
    Block b{};
    b.master = static_cast<char*>(s.master) + first * Master::kBytes;
    if constexpr (kMBytes > 0) b.momentum = static_cast<char*>(s.momentum) + first * kMBytes;
    if constexpr (kVBytes > 0) b.variance = static_cast<char*>(s.variance) + first * kVBytes;
    b.gradient = static_cast<const char*>(s.gradient) + first * kGradientBytes;
    if constexpr (Master::kParamBytes > 0)
      b.param16 = static_cast<char*>(s.param16) + first * Master::kParamBytes;

    if constexpr (Form::kScaled && Rule::kMomentum)
      b.momentum_scales = s.momentum_scales + first / kScaleBlockElements;
    if constexpr (Form::kScaled && Rule::kVariance)
      b.variance_scales = s.variance_scales + first / kScaleBlockElements;

    b.random_low = static_cast<uint32_t>(s.random.key);
    b.random_high = static_cast<uint32_t>(s.random.key >> 32);
    b.random_pair = static_cast<uint32_t>((s.random.index + first) / 2);
    return b;
  }

  __attribute__((always_inline)) static inline void Prefetch(const UpdateSpan& s,
                                                             uint64_t element) {
    PrefetchBlock<Master::kBytes>(s.master, element);
    if constexpr (kMBytes > 0) PrefetchBlock<kMBytes>(s.momentum, element);
    if constexpr (kVBytes > 0) PrefetchBlock<kVBytes>(s.variance, element);
    PrefetchBlock<kGradientBytes>(s.gradient, element);
    if constexpr (Master::kIsSplit) PrefetchBlock<Master::kParamBytes>(s.param16, element);
  }

  // Saves the old values of everything that the block's update changes.
  __attribute__((always_inline)) static inline void Save(char* to, const Block& b) {
    SavePlane<kBlockElements * Master::kBytes>(&to, b.master);
    if constexpr (kMBytes > 0) SavePlane<kBlockElements * kMBytes>(&to, b.momentum);
    if constexpr (kVBytes > 0) SavePlane<kBlockElements * kVBytes>(&to, b.variance);
    if constexpr (Master::kIsSplit) SavePlane<kBlockElements * Master::kParamBytes>(&to, b.param16);
    constexpr uint64_t kScaleBytes = kBlockElements / kScaleBlockElements * sizeof(float);
    if constexpr (Form::kScaled && Rule::kMomentum) SavePlane<kScaleBytes>(&to, b.momentum_scales);
    if constexpr (Form::kScaled && Rule::kVariance) SavePlane<kScaleBytes>(&to, b.variance_scales);
  }

  // Steps 1 and 2 of the crash-safe update for the block at `first` (undo_tile.h).
  __attribute__((always_inline)) static inline void Open(const BlockUndo& undo, uint64_t first,
                                                         const Block& b) {
    const uint64_t block = (undo.begin + first) / kBlockElements;
    uint64_t* const area = undo.areas[block % 2];
    StoreForKill(area + kAreaPiece, 0);
    area[kAreaVersion] = undo.version;
    area[kAreaBegin] = block * kBlockElements;
    area[kAreaCount] = kBlockElements;
    Save(reinterpret_cast<char*>(area + kAreaValues), b);
    StoreForKill(area + kAreaPiece, undo.identity);
    StoreForKill(undo.progress, undo.first_word + first / kBlockElements * kNextBlockWord);
  }

  // Copies between the planes at `there` and `here`; with kBack into the planes.
  template <bool kBack>
  static inline void Exchange(const Block& there, uint64_t count, ShortBlock* here) {
    const auto move = [](void* plane, void* copy, uint64_t bytes) {
      __builtin_memcpy(kBack ? plane : copy, kBack ? copy : plane, bytes);
    };

    move(there.master, here->master, count * Master::kBytes);
    if constexpr (kMBytes > 0) move(there.momentum, here->momentum, count * kMBytes);
    if constexpr (kVBytes > 0) move(there.variance, here->variance, count * kVBytes);
    if constexpr (Master::kParamBytes > 0)
      move(there.param16, here->param16, count * Master::kParamBytes);

    const uint64_t scales = (count + kScaleBlockElements - 1) / kScaleBlockElements * sizeof(float);
    if constexpr (Form::kScaled && Rule::kMomentum)
      move(there.momentum_scales, here->momentum_scales, scales);
    if constexpr (Form::kScaled && Rule::kVariance)
      move(there.variance_scales, here->variance_scales, scales);
    if constexpr (!kBack) __builtin_memcpy(here->gradient, there.gradient, count * kGradientBytes);
  }

  static bool Streams(const UpdateSpan& span) {
    return Master::kCopies && reinterpret_cast<uintptr_t>(span.param16) % kLineBytes == 0;
  }

  // Runs whole blocks. Not inlined, so that the loop exists once, and has its registers to itself.
  __attribute__((noinline)) static void RunBlocks(const StepFactors& factors,
                                                  const UpdateSpan& planes, bool streams) {
    // Copies, so that the compiler need not assume that stores to planes change them.
    const typename Rule::Factors f = FactorsOf<Rule>(factors);
    const float scale = factors.gradient_scale;
    const UpdateSpan span = planes;
    for (uint64_t first = 0; first < span.count; first += kBlockElements) {
      Block b = At(span, first);
      b.streams = streams;
      Prefetch(span, first + span.prefetch);
      if (span.undo.progress != nullptr) Open(span.undo, first, b);
      Form::template Update<Gradient, Rule>(f, scale, b);
    }
  }

  static void Run(const StepFactors& factors, const UpdateSpan& planes) {
    UpdateSpan span = planes;
    const uint64_t whole = span.count / kBlockElements * kBlockElements, left = span.count - whole;
    span.count = whole;
    RunBlocks(factors, span, Streams(span));

    if (left > 0) {
      ShortBlock copies;
      __builtin_memset(&copies, 0, sizeof copies);
      const Block there = At(planes, whole);
      Exchange<false>(there, left, &copies);

      span.master = copies.master;
      span.momentum = copies.momentum;
      span.variance = copies.variance;
      span.gradient = copies.gradient;
      span.param16 = copies.param16;
      span.momentum_scales = copies.momentum_scales;
      span.variance_scales = copies.variance_scales;
      span.random.index += whole;
      span.count = kBlockElements;
      span.prefetch = 0;
      span.undo = {};

      RunBlocks(factors, span, false);
      Exchange<true>(there, left, &copies);
    }
    // A reader that sees the piece as finished must see its copies too.
    if constexpr (Master::kCopies) _mm_sfence();
  }
};

using Loop = void (*)(const StepFactors& factors, const UpdateSpan& span);

template <typename Gradient, typename Form, typename... Rules>
void RunRule(RuleList<Rules...> /*list*/, const StepFactors& factors, const UpdateSpan& span) {
  static constexpr Loop kLoops[] = {UpdateLoop<Gradient, Form, Rules>::Run...};
  kLoops[factors.rule](factors, span);
}

template <typename Gradient>
void UpdateSplit(const StepFactors& factors, const UpdateSpan& span) {
  switch (span.states) {
    case StateForm::kSplit:
      return RunRule<Gradient, ElementForm<SplitMaster>>(AllRules(), factors, span);
    case StateForm::kSplitBf16: return RunRule<Gradient, PairForm>(AllRules(), factors, span);
    case StateForm::kSplit8: return RunRule<Gradient, Split8Form>(AllRules(), factors, span);
    case StateForm::kF32: break;
  }
}

template <typename Gradient, typename Param>
void UpdateWhole(const StepFactors& factors, const UpdateSpan& span) {
  return RunRule<Gradient, ElementForm<WholeMaster<Param>>>(AllRules(), factors, span);
}

// A job's gradients have the type of its parameters, or are fp32 sums.
[[maybe_unused]] void Update(const StepFactors& factors, const UpdateSpan& span) {
  const bool wide = span.gradient_dtype == DType::kF32;
  if (span.states != StateForm::kF32)
    return wide ? UpdateSplit<F32Element>(factors, span) : UpdateSplit<Bf16Element>(factors, span);
  if (span.param16 == nullptr) return UpdateWhole<F32Element, NoElement>(factors, span);
  if (span.param16_dtype == DType::kBF16) {
    return wide ? UpdateWhole<F32Element, Bf16Element>(factors, span)
                : UpdateWhole<Bf16Element, Bf16Element>(factors, span);
  }
  return wide ? UpdateWhole<F32Element, F16Element>(factors, span)
              : UpdateWhole<F16Element, F16Element>(factors, span);
}

}  // namespace
}  // namespace tidepool::optim

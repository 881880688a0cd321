// What a job, a step and a parameter group contribute to an update as numbers, the factors that the loops use, and the planes that they
// work on.
//
// Any thread; plain values. The rules themselves are in optim/rules/. Factors are computed in double, elements in fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/optimizer.h"

namespace tidepool::optim {

// The same for all parameters of one step; part of the step record.
struct StepScalars {
  double lr = 0;
  uint64_t optimizer_step = 1;  // 1-based; steps skipped for an overflow do not count
  float gradient_scale = 1;     // clip factor / loss scale: multiplied into each raw gradient (the sum over micro-batches)
};

// A parameter group's share.
struct GroupScalars {
  double lr_scale = 1;
  double weight_decay = 0;
};

inline constexpr uint64_t kFactorBytes = 48;

// What a loop needs, rounded once to fp32. Made by MakeFactors, one per step and group.
struct StepFactors {
  uint32_t rule = 0;  // place in AllRules (optim/rules.h)
  float gradient_scale = 1;
  alignas(8) std::byte numbers[kFactorBytes] = {};  // the rule's own
};

// Requires a checked spec, finite scalars and optimizer_step >= 1.
StepFactors MakeFactors(const OptimizerSpec& spec, const StepScalars& step, const GroupScalars& group);

// From where stochastic rounding takes its bits: a pure function of seed, version, parameter and the element's place in the parameter, so
// the result does not depend on chunks, tiles, workers or restarts.
struct RandomPlace {
  uint64_t key = 0;    // RandomKey
  uint64_t index = 0;  // of the first element, in its parameter; even
};
// `parameter_seed` is RoundingSeedOf(spec, name of the parameter).
uint64_t RandomKey(uint64_t parameter_seed, uint64_t version);

// Distance at which the loops prefetch where nobody has measured a better one.
inline constexpr uint32_t kPrefetchElements = 512;

// Old values of what comes next, copied while a span is updated (optim/undo_tile.h): elements [count, 2 * count) of each plane that changes
// in place go to where its pointer says. The span's count is a multiple of 64 then, and its planes are as long as that.
struct SaveAhead {
  void* master = nullptr;  // null: nothing is copied
  void* momentum = nullptr;
  void* variance = nullptr;
  void* param16 = nullptr;  // of a split master
};

// Equal element ranges of the planes of one chunk. The caller owns the memory; planes do not overlap. Planes start at a multiple of 64 B
// (their blocks of 64 elements then do too); slower, but right, otherwise. A plane that the rule does not need is null.
struct UpdateSpan {
  void* master = nullptr;          // kF32: fp32[count]; else int16[count], the rest of the split master, 0 beside a NaN; changed
  void* momentum = nullptr;        // kF32, kSplit: fp32[count]; kSplitBf16: bf16[count]; kSplit8: int8[count]; changed
  void* variance = nullptr;        // as momentum; kSplit8: uint8[count], of the root
  const void* gradient = nullptr;  // gradient_dtype[count], only read: it is the redo log
  DType gradient_dtype = DType::kF32;
  void* param16 = nullptr;             // param16_dtype[count], the new master rounded; null: none. Split: part of the master, changed
  DType param16_dtype = DType::kBF16;  // kBF16 or kF16
  uint64_t count = 0;
  StateForm states = StateForm::kF32;
  float* momentum_scales = nullptr;  // kSplit8: one a block of kScaleBlockElements, of which the span starts with a whole one
  float* variance_scales = nullptr;
  RandomPlace random = {};  // kSplitBf16, kSplit8
  uint32_t prefetch = kPrefetchElements;
  SaveAhead save = {};  // not for kSplit8
};

// Elements [first, first + count) of `span`, which must lie inside it. kSplitBf16, kSplit8: `first` begins a
// scale block.
UpdateSpan Slice(const UpdateSpan& span, uint64_t first, uint64_t count);

}  // namespace tidepool::optim

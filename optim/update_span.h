// UpdateSpan and StepFactors: the memory that the loops of an update work on, and their factors.
//
// Any thread; plain values. Factors are computed in double, elements in fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/formats/optimizer.h"

namespace tidepool::optim {

// Shared by all parameters of one step; part of the step record.
struct StepScalars {
  double lr = 0;
  uint64_t optimizer_step = 1;  // 1-based; steps skipped for an overflow do not count
  // Clip factor / loss scale: multiplied into each raw gradient (the sum over micro-batches)
  float gradient_scale = 1;
};

// The numbers of a parameter group.
struct GroupScalars {
  double lr_scale = 1;
  double weight_decay = 0;
};

inline constexpr uint64_t kFactorBytes = 48;

// The factors of a loop, rounded once to fp32. Made by MakeFactors, once per step and group.
struct StepFactors {
  uint32_t rule = 0;  // index in AllRules (optim/rules.h)
  float gradient_scale = 1;
  alignas(8) std::byte numbers[kFactorBytes] = {};  // the rule's own
};

// The start of the random bits for stochastic rounding: a pure function of seed, version, parameter
// and the element's index in the parameter, so the result does not depend on chunks, tiles, workers
// or restarts.
struct RandomPlace {
  uint64_t key = 0;    // RandomKey
  uint64_t index = 0;  // of the first element, in its parameter; even
};

// Prefetch distance of the loops unless a better one was measured.
inline constexpr uint32_t kPrefetchElements = 512;

// The crash-safe form of an update (optim/undo_tile.h) of a span of whole blocks of 64 elements:
// before a block is changed, its old values go to areas[block % 2] and the progress word marks it
// as open.
struct BlockUndo {
  uint64_t* areas[2] = {};       // UndoArea; blocks are numbered by their place in the piece
  uint64_t* progress = nullptr;  // ProgressWord; null: no undo
  uint64_t identity = 0;         // of the piece
  uint64_t version = 0;
  uint64_t begin = 0;  // of the span in its piece; a multiple of 64
  // The progress word of the first block, open; that of the next one is kNextBlockWord more.
  uint64_t first_word = 0;
};
inline constexpr uint64_t kNextBlockWord = 8;
// Words of an area: piece, version, begin, count; the values begin at the eighth.
enum AreaWord { kAreaPiece = 0, kAreaVersion = 1, kAreaBegin = 2, kAreaCount = 3, kAreaValues = 8 };

// Equal element ranges of the planes of one chunk. The caller owns the memory; planes do not
// overlap. Planes start at a multiple of 64 B (so their blocks of 64 elements do too); other starts
// are slower, but correct. A plane that the rule does not need is null.
struct UpdateSpan {
  // kF32: fp32[count]; else int16[count], the rest of the split master, 0 beside a NaN; changed.
  void* master = nullptr;
  // kF32, kSplit: fp32[count]; kSplitBf16: bf16[count]; kSplit8: int8[count]; changed.
  void* momentum = nullptr;
  void* variance = nullptr;        // as momentum; kSplit8: uint8[count], of the root
  const void* gradient = nullptr;  // gradient_dtype[count], only read: it is the redo log
  DType gradient_dtype = DType::kF32;
  // param16_dtype[count], the new master rounded; null: none. Split: part of the master, changed.
  void* param16 = nullptr;
  DType param16_dtype = DType::kBF16;  // kBF16 or kF16
  uint64_t count = 0;
  StateForm states = StateForm::kF32;
  // kSplit8: one per block of kScaleBlockElements; the span starts with a whole block.
  float* momentum_scales = nullptr;
  float* variance_scales = nullptr;
  RandomPlace random = {};  // kSplitBf16, kSplit8
  uint32_t prefetch = kPrefetchElements;
  BlockUndo undo = {};
};

}  // namespace tidepool::optim

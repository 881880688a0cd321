// UndoWorld: a small kept memory (planes of three pieces, the undo areas of two workers, progress
// words) that a test can copy whole at any moment, as a killed process leaves it, and recover from
// the copy.
//
// One thread. All pointers are computed from the object, so a byte copy is a world of its own.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>

#include "base/formats/split_float.h"
#include "optim/undo_tile.h"
#include "optim/update_rule.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {

inline constexpr uint64_t kTileElements = kTileElementsMin;
inline constexpr uint64_t kPieces = 3;
inline constexpr uint64_t kPieceCounts[kPieces] = {6 * kTileElements + 75, 4 * kTileElements + 1,
                                                   4 * kTileElements + 40};
inline constexpr uint64_t kPieceRoom = 8 * kTileElements;
inline constexpr uint64_t kWorkers = 2;
inline constexpr uint64_t kNewVersion = 8;

// Planes as bytes: each form of the states uses as many of them as it needs.
struct UndoWorld {
  alignas(64) std::byte master[kPieces][kPieceRoom * 4];
  std::byte momentum[kPieces][kPieceRoom * 4];
  std::byte variance[kPieces][kPieceRoom * 4];
  float momentum_scales[kPieces][kPieceRoom / kScaleBlockElements];
  float variance_scales[kPieces][kPieceRoom / kScaleBlockElements];
  uint16_t gradient[kPieces][kPieceRoom];
  uint16_t param16[kPieces][kPieceRoom];
  UndoArea areas[kWorkers][2];
  ProgressWord progress[kPieces];
  std::atomic<uint64_t> worker_progress[kWorkers];  // for a twin that keeps progress per worker
  GroupRun runs[kPieces][2];
  StateForm form;

  // All pieces finished at the version before kNewVersion.
  explicit UndoWorld(StateForm states = StateForm::kF32) {
    std::memset(static_cast<void*>(this), 0, sizeof(*this));
    form = states;
    SplitMix64 random(3);
    for (uint64_t p = 0; p < kPieces; ++p) {
      for (uint64_t i = 0; i < kPieceRoom; ++i) FillElement(&random, p, i);
      for (float& scale : momentum_scales[p]) scale = 0.1F + RandomFloat(random, 0.05F);
      for (float& scale : variance_scales[p]) scale = 0.1F + RandomFloat(random, 0.05F);
      progress[p].Store({kNewVersion - 1, 0, Progress::State::kFinished});
      // Two parameter groups, with a gap of alignment between them that belongs to neither.
      runs[p][0] = {0, 100, MakeFactors({}, {1e-2, 5, 0.5F}, {1, 0.1}), {7, 0}};
      runs[p][1] = {128, kPieceCounts[p], MakeFactors({}, {1e-2, 5, 0.5F}, {2, 0}), {8, 32}};
    }
  }
  UndoWorld(const UndoWorld& other) {
    std::memcpy(static_cast<void*>(this), static_cast<const void*>(&other), sizeof(*this));
  }
  UndoWorld& operator=(const UndoWorld& other) {
    std::memcpy(static_cast<void*>(this), static_cast<const void*>(&other), sizeof(*this));
    return *this;
  }

  void FillElement(SplitMix64* random, uint64_t p, uint64_t i) {
    const float value = RandomFloat(*random, 1.0F), m = RandomFloat(*random, 0.1F),
                v = 0.01F + RandomFloat(*random, 0.001F);
    gradient[p][i] = NarrowToBf16(RandomFloat(*random, 1.0F));
    if (IsSplit(form)) {
      const SplitFloat halves = Split(value);
      param16[p][i] = halves.high;
      std::memcpy(&master[p][2 * i], &halves.rest, 2);
    } else {
      std::memcpy(&master[p][4 * i], &value, 4);
    }
    const auto put = [&](std::byte* plane, float moment) {
      const uint16_t half = NarrowToBf16(moment);
      if (form == StateForm::kSplitBf16) std::memcpy(plane + 2 * i, &half, 2);
      if (form == StateForm::kSplit8) plane[i] = static_cast<std::byte>(random->Next());
      if (form == StateForm::kF32 || form == StateForm::kSplit)
        std::memcpy(plane + 4 * i, &moment, 4);
    };
    put(momentum[p], m);
    put(variance[p], v);
  }

  Piece PieceOf(uint64_t p) {
    UpdateSpan planes{master[p],    momentum[p], variance[p],  gradient[p],
                      DType::kBF16, param16[p],  DType::kBF16, kPieceCounts[p]};
    planes.states = form;
    if (form == StateForm::kSplit8) planes.momentum_scales = momentum_scales[p];
    if (form == StateForm::kSplit8) planes.variance_scales = variance_scales[p];
    return {p + 1, kNewVersion, planes, runs[p], &progress[p]};
  }
  std::span<UndoArea, 2> AreasOf(uint64_t worker) { return areas[worker]; }
  std::span<UndoArea> AllAreas() { return {&areas[0][0], kWorkers * 2}; }
};

inline bool SameStates(const UndoWorld& a, const UndoWorld& b) {
  return std::memcmp(a.master, b.master, sizeof(a.master)) == 0 &&
         std::memcmp(a.momentum, b.momentum, sizeof(a.momentum)) == 0 &&
         std::memcmp(a.variance, b.variance, sizeof(a.variance)) == 0 &&
         std::memcmp(a.param16, b.param16, sizeof(a.param16)) == 0 &&
         std::memcmp(a.gradient, b.gradient, sizeof(a.gradient)) == 0 &&
         std::memcmp(a.momentum_scales, b.momentum_scales, sizeof(a.momentum_scales)) == 0 &&
         std::memcmp(a.variance_scales, b.variance_scales, sizeof(a.variance_scales)) == 0;
}

// What the states must be in the end: each piece updated once, with no protocol at all.
inline UndoWorld UpdatedWorld(const Kernels& kernels, StateForm form = StateForm::kF32) {
  UndoWorld world(form);
  for (uint64_t p = 0; p < kPieces; ++p) {
    for (const GroupRun& run : world.runs[p]) {
      UpdateSpan span = Slice(world.PieceOf(p).planes, run.begin, run.end - run.begin);
      span.random = run.random;
      kernels.update(run.factors, span);
    }
  }
  return world;
}

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed") {}
};

// `kernels` with an update that is killed half-way: some elements are lost, of its first tile where
// it opens tiles; then Killed is thrown.
inline Kernels KilledInUpdate(const Kernels& kernels) {
  Kernels killed = kernels;
  killed.update = [](const StepFactors& factors, const UpdateSpan& whole) {
    const bool opens = whole.undo.progress != nullptr;
    const UpdateSpan span = opens ? Slice(whole, 0, kUpdateTileElements) : whole;
    if (opens) SelectKernels(BestIsa()).update(factors, span);
    std::memset(span.master, 0x5A, MasterBytes(span.states, span.count / 2));
    std::memset(span.momentum, 0x5B, span.count / 3);
    std::memset(span.variance, 0x5C, span.count / 4);
    if (IsSplit(span.states)) std::memset(span.param16, 0x5D, span.count);
    if (span.momentum_scales != nullptr) *span.momentum_scales = *span.variance_scales = -1;
    throw Killed();
  };
  return killed;
}

// `run(kernels)` ends by a kill in its first update.
template <typename Run>
void RunUntilKilled(const Kernels& kernels, Run run) {
  try {
    run(KilledInUpdate(kernels));
  } catch (const Killed&) {
    return;
  }
  throw std::logic_error("nothing was updated");
}

// The order of recovery: all open tiles first, then the updates, here by other workers than before.
inline bool Recover(UndoWorld& world, const Kernels& kernels, const Tuning& tuning = {}) {
  for (uint64_t p = 0; p < kPieces; ++p) {
    if (RestoreOpenTile(world.PieceOf(p), world.AllAreas()) == RestoreOutcome::kUndoLost)
      return false;
  }
  constexpr uint64_t kWorkerOfPiece[kPieces] = {1, 0, 0};
  for (uint64_t p = 0; p < kPieces; ++p)
    TileUpdate(kernels, world.AreasOf(kWorkerOfPiece[p]), tuning).Run(world.PieceOf(p));
  return true;
}

}  // namespace tidepool::optim

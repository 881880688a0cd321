// UndoWorld: a small kept memory (planes of three pieces, the undo areas of two workers, progress words) that a test can copy whole at any
// moment, as a killed process leaves it, and recover from the copy.
//
// One thread. All pointers are computed from the object, so a byte copy is a world of its own.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>

#include "optim/undo_tile.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {

inline constexpr uint64_t kPieces = 3;
inline constexpr uint64_t kPieceCounts[kPieces] = {2 * kTileElements + 75, kTileElements + 1, kTileElements + 40};
inline constexpr uint64_t kPieceRoom = 3 * kTileElements;
inline constexpr uint64_t kWorkers = 2;
inline constexpr uint64_t kNewVersion = 8;

struct UndoWorld {
  alignas(64) float master[kPieces][kPieceRoom];
  float momentum[kPieces][kPieceRoom];
  float variance[kPieces][kPieceRoom];
  uint16_t gradient[kPieces][kPieceRoom];
  uint16_t param16[kPieces][kPieceRoom];
  UndoArea areas[kWorkers][2];
  ProgressWord progress[kPieces];
  std::atomic<uint64_t> worker_progress[kWorkers];  // for a twin that keeps progress per worker
  GroupRun runs[kPieces][2];

  // All pieces finished at the version before kNewVersion.
  UndoWorld() {
    std::memset(static_cast<void*>(this), 0, sizeof(*this));
    const std::vector<float> values = RandomFloats(3, 4 * kPieces * kPieceRoom, 1.0F);
    std::copy_n(values.begin(), kPieces * kPieceRoom, &master[0][0]);
    for (uint64_t i = 0; i < kPieces * kPieceRoom; ++i) {
      (&momentum[0][0])[i] = 0.1F * values[kPieces * kPieceRoom + i];
      (&variance[0][0])[i] = 0.01F + 0.001F * values[2 * kPieces * kPieceRoom + i];
      (&gradient[0][0])[i] = NarrowToBf16(values[3 * kPieces * kPieceRoom + i]);
    }
    for (uint64_t p = 0; p < kPieces; ++p) {
      progress[p].Store({kNewVersion - 1, 0, Progress::State::kFinished});
      // Two parameter groups, with a gap of alignment between them that belongs to neither.
      runs[p][0] = {0, 100, MakeAdamFactors({}, {1e-2, 5, 0.5F}, {1, 0.1})};
      runs[p][1] = {112, kPieceCounts[p], MakeAdamFactors({}, {1e-2, 5, 0.5F}, {2, 0})};
    }
  }
  UndoWorld(const UndoWorld& other) { std::memcpy(static_cast<void*>(this), static_cast<const void*>(&other), sizeof(*this)); }
  UndoWorld& operator=(const UndoWorld& other) {
    std::memcpy(static_cast<void*>(this), static_cast<const void*>(&other), sizeof(*this));
    return *this;
  }

  Piece PieceOf(uint64_t p) {
    const UpdateSpan planes{master[p], momentum[p], variance[p], gradient[p], DType::kBF16, param16[p], DType::kBF16, kPieceCounts[p]};
    return {p + 1, kNewVersion, planes, runs[p], &progress[p]};
  }
  std::span<UndoArea, 2> AreasOf(uint64_t worker) { return areas[worker]; }
  std::span<UndoArea> AllAreas() { return {&areas[0][0], kWorkers * 2}; }
};

inline bool SameStates(const UndoWorld& a, const UndoWorld& b) {
  return std::memcmp(a.master, b.master, sizeof(a.master)) == 0 && std::memcmp(a.momentum, b.momentum, sizeof(a.momentum)) == 0 &&
         std::memcmp(a.variance, b.variance, sizeof(a.variance)) == 0 && std::memcmp(a.param16, b.param16, sizeof(a.param16)) == 0 &&
         std::memcmp(a.gradient, b.gradient, sizeof(a.gradient)) == 0;
}

// What the states must be in the end: each piece updated once, with no protocol at all.
inline UndoWorld UpdatedWorld(const Kernels& kernels) {
  UndoWorld world;
  for (uint64_t p = 0; p < kPieces; ++p) {
    for (const GroupRun& run : world.runs[p]) kernels.update(run.factors, Slice(world.PieceOf(p).planes, run.begin, run.end - run.begin));
  }
  return world;
}

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed") {}
};

// `kernels` with an update that is killed half-way: some elements are lost, then Killed is thrown.
inline Kernels KilledInUpdate(const Kernels& kernels) {
  Kernels killed = kernels;
  killed.update = [](const AdamFactors&, const UpdateSpan& span) {
    std::fill_n(span.master, span.count / 2, -1.0F);
    std::fill_n(span.momentum, span.count / 3, -2.0F);
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
inline bool Recover(UndoWorld& world, const Kernels& kernels) {
  for (uint64_t p = 0; p < kPieces; ++p) {
    if (RestoreOpenTile(world.PieceOf(p), world.AllAreas()) == RestoreOutcome::kUndoLost) return false;
  }
  constexpr uint64_t kWorkerOfPiece[kPieces] = {1, 0, 0};
  for (uint64_t p = 0; p < kPieces; ++p) TileUpdate(kernels, world.AreasOf(kWorkerOfPiece[p])).Run(world.PieceOf(p));
  return true;
}

}  // namespace tidepool::optim

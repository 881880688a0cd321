#include "optim/undo_tile.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/point.h"
#include "base/units.h"

namespace tidepool::optim {
namespace {

constexpr int kVersionShift = 24;
constexpr int kTileShift = 2;
constexpr uint64_t kVersionLimit = 1ULL << (64 - kVersionShift);
constexpr uint64_t kTileLimit = 1ULL << (kVersionShift - kTileShift);
constexpr uint64_t kStateMask = 3;

// Keeps the compiler from moving stores over this place. A killed thread has done its instructions in program order, as a signal handler
// on the same thread would see them, so no instruction is needed.
void OrderForKill() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void CopyTile(float* to, const float* from, uint64_t count) {
  std::memcpy(to, from, count * sizeof(float));
}

uint64_t FirstTile(const Piece& piece, const Progress& at) {
  TP_CHECK(piece.identity != 0, "piece identity 0 means an empty undo area");
  TP_CHECK(at.state != Progress::State::kOpen, "restore the open tile before the update goes on");
  TP_CHECK(at.version <= piece.version, "the piece is newer than its update");
  if (at.version == piece.version) return at.tile;
  TP_CHECK(at.state == Progress::State::kFinished || at.tile == 0, "the update before this one was not finished");
  return 0;
}

}  // namespace

Progress ProgressWord::Load() const {
  const uint64_t bits = bits_.load(std::memory_order_acquire);
  return {bits >> kVersionShift, (bits >> kTileShift) & (kTileLimit - 1), static_cast<Progress::State>(bits & kStateMask)};
}

void ProgressWord::Store(const Progress& progress) {
  TP_CHECK(progress.version < kVersionLimit && progress.tile < kTileLimit, "version or tile does not fit the progress word");
  OrderForKill();
  bits_.store(progress.version << kVersionShift | progress.tile << kTileShift | static_cast<uint64_t>(progress.state),
              std::memory_order_release);
  OrderForKill();
}

TileUpdate::TileUpdate(const Kernels& kernels, std::span<UndoArea, 2> areas) : kernels_(kernels), areas_(areas) {}

void TileUpdate::Run(const Piece& piece) {
  const Progress at = piece.progress->Load();
  if (at.state == Progress::State::kFinished && at.version == piece.version) return;
  const uint64_t count = piece.planes.count;
  for (uint64_t tile = FirstTile(piece, at); tile * kTileElements < count; ++tile) {
    const uint64_t first = tile * kTileElements;
    const uint64_t tile_count = std::min(kTileElements, count - first);
    SaveTile(piece, tile, tile_count);
    TP_POINT("optim.tile_saved");
    piece.progress->Store({piece.version, tile, Progress::State::kOpen});
    TP_POINT("optim.tile_progress");
    UpdateTile(piece, first, tile_count);
    TP_POINT("optim.tile_written");
  }
  piece.progress->Store({piece.version, 0, Progress::State::kFinished});
  TP_POINT("optim.piece_finished");
}

// The area is empty while it is written: a half-written one must not pass for the tile that it held before.
void TileUpdate::SaveTile(const Piece& piece, uint64_t tile, uint64_t count) const {
  UndoArea& area = areas_[tile % 2];
  const uint64_t first = tile * kTileElements;
  area.piece.store(0, std::memory_order_relaxed);
  OrderForKill();
  area.version = piece.version;
  area.tile = tile;
  area.count = count;
  kernels_.copy(area.master, piece.planes.master + first, count);
  kernels_.copy(area.momentum, piece.planes.momentum + first, count);
  kernels_.copy(area.variance, piece.planes.variance + first, count);
  OrderForKill();
  area.piece.store(piece.identity, std::memory_order_release);
}

void TileUpdate::UpdateTile(const Piece& piece, uint64_t first, uint64_t count) const {
  const uint64_t end = first + count;
  auto run = std::partition_point(piece.runs.begin(), piece.runs.end(), [first](const GroupRun& r) { return r.end <= first; });
  for (; run != piece.runs.end() && run->begin < end; ++run) {
    const uint64_t begin = std::max(run->begin, first);
    kernels_.update(run->factors, Slice(piece.planes, begin, std::min(run->end, end) - begin));
  }
}

RestoreOutcome RestoreOpenTile(const Piece& piece, std::span<const UndoArea> areas) {
  const Progress at = piece.progress->Load();
  if (at.state != Progress::State::kOpen) return RestoreOutcome::kNothingOpen;
  const uint64_t first = at.tile * kTileElements;
  if (at.version != piece.version || first >= piece.planes.count) return RestoreOutcome::kUndoLost;
  const uint64_t count = std::min(kTileElements, piece.planes.count - first);
  for (const UndoArea& area : areas) {
    if (area.piece.load(std::memory_order_acquire) != piece.identity) continue;
    if (area.version != at.version || area.tile != at.tile || area.count != count) continue;
    CopyTile(piece.planes.master + first, area.master, count);
    CopyTile(piece.planes.momentum + first, area.momentum, count);
    CopyTile(piece.planes.variance + first, area.variance, count);
    // From here on the area is free for any worker: the tile needs no undo until it is saved again.
    piece.progress->Store({at.version, at.tile, Progress::State::kClosed});
    TP_POINT("optim.tile_restored");
    return RestoreOutcome::kRestored;
  }
  return RestoreOutcome::kUndoLost;
}

}  // namespace tidepool::optim

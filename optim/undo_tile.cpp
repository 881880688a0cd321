#include "optim/undo_tile.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/planted.h"
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

constexpr uint32_t kPlanesMax = 3;

// The areas' planes, as the planes of a piece are numbered.
float* PlaneOf(UndoArea* area, uint32_t plane) {
  return std::array{area->master, area->momentum, area->variance}[plane];
}
const float* PlaneOf(const UndoArea& area, uint32_t plane) {
  return std::array{area.master, area.momentum, area.variance}[plane];
}

}  // namespace

struct Tiles {
  uint64_t identity;
  uint64_t version;
  uint64_t count;
  ProgressWord* progress;
  std::array<float*, kPlanesMax> planes;  // those that change; null behind the last
};

namespace {

uint64_t FirstTile(uint64_t identity, uint64_t version, const Progress& at) {
  TP_CHECK(identity != 0, "piece identity 0 means an empty undo area");
  TP_CHECK(at.state != Progress::State::kOpen, "restore the open tile before the update goes on");
  TP_CHECK(at.version <= version, "the piece is newer than its update");
  if (at.version == version) return at.tile;
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
  const UpdateSpan& planes = piece.planes;
  const Tiles tiles{piece.identity, piece.version, planes.count, piece.progress, {planes.master, planes.momentum, planes.variance}};
  RunTiles(tiles, [&](uint64_t first, uint64_t count) { UpdateTile(piece, first, count); });
}

void TileUpdate::Add(const AddPiece& piece) {
  const Tiles tiles{piece.identity, piece.sequence, piece.count, piece.progress, {piece.sum, nullptr, nullptr}};
  const auto* addend = static_cast<const std::byte*>(piece.addend);
  RunTiles(tiles, [&](uint64_t first, uint64_t count) {
    kernels_.accumulate_gradient(piece.sum + first, addend + first * BytesOf(piece.dtype), piece.dtype, count);
  });
}

template <typename Apply>
void TileUpdate::RunTiles(const Tiles& tiles, Apply apply) {
  const Progress at = tiles.progress->Load();
  if (at.state == Progress::State::kFinished && at.version == tiles.version && !TP_PLANTED("optim.finished_piece_again")) return;
  for (uint64_t tile = FirstTile(tiles.identity, tiles.version, at); tile * kTileElements < tiles.count; ++tile) {
    const uint64_t first = tile * kTileElements;
    const uint64_t count = std::min(kTileElements, tiles.count - first);
    SaveTile(tiles, tile, count);
    TP_POINT("optim.tile_saved");
    if (!TP_PLANTED("optim.tile_not_opened")) tiles.progress->Store({tiles.version, tile, Progress::State::kOpen});
    TP_POINT("optim.tile_progress");
    apply(first, count);
    TP_POINT("optim.tile_written");
  }
  tiles.progress->Store({tiles.version, 0, Progress::State::kFinished});
  TP_POINT("optim.piece_finished");
}

// The area is empty while it is written: a half-written one must not pass for the tile that it held before.
void TileUpdate::SaveTile(const Tiles& tiles, uint64_t tile, uint64_t count) const {
  UndoArea& area = areas_[tile % (TP_PLANTED("optim.one_undo_area") ? 1 : 2)];
  const uint64_t first = tile * kTileElements;
  if (!TP_PLANTED("optim.undo_not_emptied")) area.piece.store(0, std::memory_order_relaxed);
  OrderForKill();
  area.version = tiles.version;
  area.tile = tile;
  area.count = count;
  for (uint32_t plane = 0; plane < kPlanesMax && tiles.planes[plane] != nullptr; ++plane) {
    kernels_.copy(PlaneOf(&area, plane), tiles.planes[plane] + first, count);
  }
  OrderForKill();
  area.piece.store(tiles.identity, std::memory_order_release);
}

void TileUpdate::UpdateTile(const Piece& piece, uint64_t first, uint64_t count) const {
  const uint64_t end = first + count;
  auto run = std::partition_point(piece.runs.begin(), piece.runs.end(), [first](const GroupRun& r) { return r.end <= first; });
  for (; run != piece.runs.end() && run->begin < end; ++run) {
    const uint64_t begin = std::max(run->begin, first);
    kernels_.update(run->factors, Slice(piece.planes, begin, std::min(run->end, end) - begin));
  }
}

static RestoreOutcome RestoreTiles(const Tiles& tiles, std::span<const UndoArea> areas) {
  const Progress at = tiles.progress->Load();
  if (at.state != Progress::State::kOpen) return RestoreOutcome::kNothingOpen;
  const uint64_t first = at.tile * kTileElements;
  if (at.version != tiles.version || first >= tiles.count) return RestoreOutcome::kUndoLost;
  const uint64_t count = std::min(kTileElements, tiles.count - first);
  for (const UndoArea& area : areas) {
    if (area.piece.load(std::memory_order_acquire) != tiles.identity) continue;
    if (area.version != at.version || area.tile != at.tile || area.count != count) continue;
    for (uint32_t plane = 0; plane < kPlanesMax && tiles.planes[plane] != nullptr && !TP_PLANTED("optim.tile_not_restored"); ++plane) {
      std::memcpy(tiles.planes[plane] + first, PlaneOf(area, plane), count * sizeof(float));
    }
    // From here on the area is free for any worker: the tile needs no undo until it is saved again.
    tiles.progress->Store({at.version, at.tile, Progress::State::kClosed});
    TP_POINT("optim.tile_restored");
    return RestoreOutcome::kRestored;
  }
  return RestoreOutcome::kUndoLost;
}

RestoreOutcome RestoreOpenTile(const Piece& piece, std::span<const UndoArea> areas) {
  const UpdateSpan& planes = piece.planes;
  return RestoreTiles({piece.identity, piece.version, planes.count, piece.progress, {planes.master, planes.momentum, planes.variance}},
                      areas);
}

RestoreOutcome RestoreOpenTile(const AddPiece& piece, std::span<const UndoArea> areas) {
  return RestoreTiles({piece.identity, piece.sequence, piece.count, piece.progress, {piece.sum, nullptr, nullptr}}, areas);
}

}  // namespace tidepool::optim

#include "optim/undo_tile.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"
#include "optim/update_rule.h"

namespace tidepool::optim {
namespace {

constexpr int kVersionShift = 25;
constexpr int kBeginShift = 3;
constexpr uint64_t kVersionLimit = 1ULL << (64 - kVersionShift);
constexpr uint64_t kBeginLimit = 1ULL << (kVersionShift - kBeginShift);
constexpr uint64_t kStateMask = 7;
// Stored states; an open tile of 64 << n elements is kStoredOpen + n.
constexpr uint64_t kStoredClosed = 0, kStoredFinished = 1, kStoredOpen = 2;
constexpr uint64_t kStoredOpenMax = kStoredOpen + 2;
static_assert(kTileElementsMin << (kStoredOpenMax - kStoredOpen) == kTileElementsMax);
// The layout that the loops write (BlockUndo): an area, and the word of the next tile.
static_assert(kUpdateTileElements == kTileElementsMin && kNextBlockWord == 1 << kBeginShift);
static_assert(offsetof(UndoArea, piece) == kAreaPiece * 8 &&
              offsetof(UndoArea, version) == kAreaVersion * 8);
static_assert(offsetof(UndoArea, begin) == kAreaBegin * 8 &&
              offsetof(UndoArea, count) == kAreaCount * 8);
static_assert(offsetof(UndoArea, values) == kAreaValues * 8);

// Keeps the compiler from moving stores across this point. A killed thread has done its
// instructions in program order, as a signal handler on the same thread would see them, so no
// instruction is needed.
void OrderForKill() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

uint64_t BytesOf(const ChangedPlane& plane, uint64_t elements) {
  return plane.bits == 1 ? DivideUp(elements, kScaleBlockElements) * sizeof(float)
                         : elements * plane.bits / 8;
}

const std::byte* ByteOf(const ChangedPlane& plane, uint64_t element) {
  return plane.data + BytesOf(plane, element);
}

const ChangedPlane& LastOf(const ChangedPlanes& planes) {
  size_t last = 0;
  while (last + 1 < planes.size() && planes[last + 1].data != nullptr) ++last;
  return planes[last];
}

// Calls `move(in the plane, in the area, bytes)` for each plane of a tile.
template <typename Move>
void ForEachPlane(const ChangedPlanes& planes, uint64_t first, uint64_t count, Move move) {
  uint64_t at = 0;
  for (const ChangedPlane& plane : planes) {
    if (plane.data == nullptr) return;
    const uint64_t bytes = BytesOf(plane, count);
    TP_CHECK(at + bytes <= UndoArea::kBytesMax, "an undo area has room for every plane of a tile");
    move(plane.data + BytesOf(plane, first), at, bytes);
    at += RoundUp(bytes, sizeof(uint64_t));
  }
}

ChangedPlanes PlanesOf(const UpdateSpan& span) {
  ChangedPlanes planes{};
  uint32_t next = 0;
  const auto add = [&](void* data, uint64_t bits) {
    if (data != nullptr) planes[next++] = {static_cast<std::byte*>(data), bits};
  };

  const bool split = span.states != StateForm::kF32;
  const uint64_t moment_bits = span.states == StateForm::kSplit8      ? 8
                               : span.states == StateForm::kSplitBf16 ? 16
                                                                      : 32;

  add(span.master, split ? 16 : 32);
  add(span.momentum, moment_bits);
  add(span.variance, moment_bits);
  if (split) add(span.param16, 16);
  add(span.momentum_scales, 1);
  add(span.variance_scales, 1);
  return planes;
}

}  // namespace

struct Tiles {
  uint64_t identity;
  uint64_t version;
  uint64_t count;
  ProgressWord* progress;
  ChangedPlanes planes;
};

namespace {

Tiles TilesOf(const Piece& piece) {
  return {piece.identity, piece.version, piece.planes.count, piece.progress,
          PlanesOf(piece.planes)};
}

Tiles TilesOf(const AddPiece& piece) {
  return {piece.identity,
          piece.sequence,
          piece.count,
          piece.progress,
          {{{reinterpret_cast<std::byte*>(piece.sum), 32}}}};
}

bool IsFinished(const Tiles& tiles) {
  const Progress at = tiles.progress->Load();
  return at.state == Progress::State::kFinished && at.version == tiles.version &&
         !TP_PLANTED("optim.finished_piece_again");
}

void Finish(const Tiles& tiles) {
  tiles.progress->Store({tiles.version, 0, Progress::State::kFinished});
  TP_POINT("optim.piece_finished");
}

// The first run that ends behind `element`; the end of the runs if there is none.
const GroupRun* RunFrom(const Piece& piece, uint64_t element) {
  return std::partition_point(piece.runs.data(), piece.runs.data() + piece.runs.size(),
                              [=](const GroupRun& run) { return run.end <= element; });
}

// The run that contains `element`, or null.
const GroupRun* RunAt(const Piece& piece, uint64_t element) {
  const GroupRun* run = RunFrom(piece, element);
  return run != piece.runs.data() + piece.runs.size() && run->begin <= element ? run : nullptr;
}

// The first element with its old value.
uint64_t FirstElement(const Tiles& tiles) {
  const Progress at = tiles.progress->Load();
  TP_CHECK(tiles.identity != 0, "piece identity 0 means an empty undo area");
  TP_CHECK(at.state != Progress::State::kOpen, "restore the open tile before the update goes on");
  TP_CHECK(at.version <= tiles.version, "the piece is newer than its update");
  if (at.version == tiles.version) return at.begin;
  TP_CHECK(at.state == Progress::State::kFinished || at.begin == 0,
           "the update before this one was not finished");
  return 0;
}

uint64_t StoredState(const Progress& progress) {
  if (progress.state == Progress::State::kClosed) return kStoredClosed;
  if (progress.state == Progress::State::kFinished) return kStoredFinished;
  TP_CHECK(std::has_single_bit(progress.open) && progress.open >= kTileElementsMin &&
               progress.open <= kTileElementsMax,
           "no such tile");
  return kStoredOpen + static_cast<uint64_t>(std::countr_zero(progress.open / kTileElementsMin));
}

}  // namespace

Progress ProgressWord::Load() const {
  const uint64_t bits = bits_.load(std::memory_order_acquire);
  const uint64_t stored = bits & kStateMask;
  Progress progress;
  progress.version = bits >> kVersionShift;
  progress.begin = ((bits >> kBeginShift) & (kBeginLimit - 1)) * kTileElementsMin;
  if (stored == kStoredFinished) progress.state = Progress::State::kFinished;
  if (stored >= kStoredOpen) progress.state = Progress::State::kOpen;
  if (stored >= kStoredOpen && stored <= kStoredOpenMax)
    progress.open = kTileElementsMin << (stored - kStoredOpen);
  return progress;
}

uint64_t ProgressWord::BitsOf(const Progress& progress) {
  const uint64_t begin = progress.begin / kTileElementsMin;
  TP_CHECK(progress.version < kVersionLimit && begin < kBeginLimit,
           "version or tile does not fit the progress word");
  return progress.version << kVersionShift | begin << kBeginShift | StoredState(progress);
}

void ProgressWord::Store(const Progress& progress) {
  const uint64_t bits = BitsOf(progress);
  OrderForKill();
  bits_.store(bits, std::memory_order_release);
  OrderForKill();
}

TileUpdate::TileUpdate(const Kernels& kernels, std::span<UndoArea, 2> areas, const Tuning& tuning)
    : kernels_(kernels), areas_(areas), tuning_(tuning) {}

void TileUpdate::Run(const Piece& piece) {
  const Tiles tiles = TilesOf(piece);
  if (IsFinished(tiles)) return;
  for (uint64_t first = FirstElement(tiles); first < tiles.count;) {
    const GroupRun* run = RunAt(piece, first);
    uint64_t count = run == nullptr ? 0
                                    : (std::min(run->end, tiles.count) - first) /
                                          kUpdateTileElements * kUpdateTileElements;
    if (tuning_.each_tile) count = std::min(count, kUpdateTileElements);

    if (count > 0 && kernels_.isa != IsaLevel::kScalarReference) {
      TP_STORE_POINT("optim.first_plane_stored", ByteOf(tiles.planes.front(), first + count / 2));
      TP_STORE_POINT("optim.last_plane_stored", ByteOf(LastOf(tiles.planes), first + count / 2));
      UpdateWholeTiles(piece, *run, first, count);
    } else {
      count = std::min(kUpdateTileElements, tiles.count - first);
      OpenTile(tiles, first, count, kUpdateTileElements);
      UpdateCutTile(piece, first, count);
    }

    TP_POINT("optim.tile_written");
    first += count;
  }
  Finish(tiles);
}

void TileUpdate::Add(const AddPiece& piece) {
  const Tiles tiles = TilesOf(piece);
  if (IsFinished(tiles)) return;
  const auto* addend = static_cast<const std::byte*>(piece.addend);

  for (uint64_t first = FirstElement(tiles), count = 0; first < tiles.count; first += count) {
    count = std::min(kAddTileElements, tiles.count - first);
    OpenTile(tiles, first, count, kAddTileElements);
    kernels_.accumulate_gradient(piece.sum + first, addend + first * tidepool::BytesOf(piece.dtype),
                                 piece.dtype, count);
    TP_POINT("optim.tile_written");
  }
  Finish(tiles);
}

UndoArea* TileUpdate::AreaOf(uint64_t first, uint64_t length) const {
  return &areas_[TP_PLANTED("optim.one_undo_area") ? 0 : first / length % 2];
}

void TileUpdate::OpenTile(const Tiles& tiles, uint64_t first, uint64_t count,
                          uint64_t length) const {
  SaveTile(tiles, first, count, AreaOf(first, length));
  TP_POINT("optim.tile_saved");
  if (!TP_PLANTED("optim.tile_not_opened"))
    tiles.progress->Store({tiles.version, first, Progress::State::kOpen, length});
  TP_POINT("optim.tile_progress");
}

// The area is marked empty while it is written: a half-written one must not be taken for the tile
// that it held before.
void TileUpdate::SaveTile(const Tiles& tiles, uint64_t first, uint64_t count,
                          UndoArea* area) const {
  if (!TP_PLANTED("optim.undo_not_emptied")) area->piece.store(0, std::memory_order_relaxed);
  OrderForKill();

  area->version = tiles.version;
  area->begin = first;
  area->count = count;

  ForEachPlane(tiles.planes, first, count, [&](std::byte* plane, uint64_t at, uint64_t bytes) {
    if (at > 0 && TP_PLANTED("optim.plane_without_undo")) return;
    kernels_.copy(area->values + at, plane, bytes);
  });
  OrderForKill();
  area->piece.store(tiles.identity, std::memory_order_release);
}

void TileUpdate::UpdateWholeTiles(const Piece& piece, const GroupRun& run, uint64_t first,
                                  uint64_t count) const {
  UpdateSpan span = Slice(piece.planes, first, count);
  span.random = {run.random.key, run.random.index + (first - run.begin)};
  span.prefetch = tuning_.prefetch_elements;

  span.undo.areas[0] = reinterpret_cast<uint64_t*>(AreaOf(0, kUpdateTileElements));
  span.undo.areas[1] =
      reinterpret_cast<uint64_t*>(AreaOf(kUpdateTileElements, kUpdateTileElements));

  span.undo.progress = reinterpret_cast<uint64_t*>(piece.progress);
  span.undo.identity = piece.identity;
  span.undo.version = piece.version;
  span.undo.begin = first;
  span.undo.first_word =
      ProgressWord::BitsOf({piece.version, first, Progress::State::kOpen, kUpdateTileElements});
  kernels_.update(run.factors, span);
}

// Updates a tile of several parameters, or the last one of a piece.
void TileUpdate::UpdateCutTile(const Piece& piece, uint64_t first, uint64_t count) const {
  const uint64_t end = first + count;
  for (const GroupRun* run = RunFrom(piece, first);
       run != piece.runs.data() + piece.runs.size() && run->begin < end; ++run) {
    const uint64_t begin = std::max(run->begin, first);
    UpdateSpan span = Slice(piece.planes, begin, std::min(run->end, end) - begin);
    span.random = {run->random.key, run->random.index + (begin - run->begin)};
    span.prefetch = tuning_.prefetch_elements;
    kernels_.update(run->factors, span);
  }
}

static RestoreOutcome RestoreTiles(const Tiles& tiles, std::span<const UndoArea> areas) {
  const Progress at = tiles.progress->Load();
  if (at.state != Progress::State::kOpen) return RestoreOutcome::kNothingOpen;
  if (at.version != tiles.version || at.begin >= tiles.count || at.open == 0)
    return RestoreOutcome::kUndoLost;

  const uint64_t count = std::min(at.open, tiles.count - at.begin);
  for (const UndoArea& area : areas) {
    if (area.piece.load(std::memory_order_acquire) != tiles.identity) continue;
    if (area.version != at.version || area.begin != at.begin || area.count != count) continue;
    ForEachPlane(tiles.planes, at.begin, count,
                 [&](std::byte* plane, uint64_t from, uint64_t bytes) {
                   if (!TP_PLANTED("optim.tile_not_restored"))
                     std::memcpy(plane, area.values + from, bytes);
                 });
    // From here on any worker may reuse the area: the tile needs no undo until it is saved again.
    tiles.progress->Store({at.version, at.begin, Progress::State::kClosed});
    TP_POINT("optim.tile_restored");
    return RestoreOutcome::kRestored;
  }
  return RestoreOutcome::kUndoLost;
}

RestoreOutcome RestoreOpenTile(const Piece& piece, std::span<const UndoArea> areas) {
  return RestoreTiles(TilesOf(piece), areas);
}

RestoreOutcome RestoreOpenTile(const AddPiece& piece, std::span<const UndoArea> areas) {
  return RestoreTiles(TilesOf(piece), areas);
}

}  // namespace tidepool::optim

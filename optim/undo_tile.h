// TileUpdate: the crash-safe update (and addition of gradients), in place and tile by tile, with
// two alternating undo areas per worker. Areas, progress words and planes lie in kept memory, which
// outlives a killed process.
//
// One worker thread per TileUpdate and its two areas; one worker at a time per piece; recovery runs
// before any worker starts.
// For each tile of a piece (whole tiles of one parameter: in the loops themselves,
// UpdateLoop::Open; others and additions: here):
//   1. save the old values of every plane that changes into the other area    optim.tile_saved
//   2. progress word := (version, first element, open)                        optim.tile_progress
//   3. update the tile in place                                               optim.tile_written
// and, after the last one, progress word := (version, finished)               optim.piece_finished
// The loops themselves are killed at a store to the first or last plane in the middle of a call:
// optim.first_plane_stored, optim.last_plane_stored (TP_STORE_POINT).
//
//   tile      0          1          2
//   area 0    save 0 ............   save 2
//   area 1               save 1 ............
//   progress       0 open    1 open     2 open  finished
//
// An area is overwritten only when the progress word has left its tile, so at every instruction the
// open tile, the only one that may be torn, has its old values in an area.
//
// Invariants:
// 1. A tile is written only while the progress word says that it is open.
// 2. While a piece has an open tile, some area names (piece, version, tile) and holds the tile's
//    old values whole.
// 3. The gradient is not changed before the piece is finished: it is the redo log (write-ahead
//    logging with undo and redo, per tile).
// 4. The progress word belongs to the piece, not to the worker: a finished piece stays finished
//    when its worker takes the next one.
// 5. The progress word says at which element a tile begins, and how large an open one is: tiles of
//    updates and of additions differ.
// A crash here is a killed process: stores take effect in program order. Power loss ends the memory
// itself and is not covered.
// A 16-bit copy beside an fp32 master needs no undo (a repeated tile writes it again); the copy of
// a split master is half of it, and has one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "optim/kernels/kernels.h"
#include "optim/update_rule.h"

namespace tidepool::optim {

// Tiles begin at multiples of their length; a scale block never spans two of them. An update's tile
// is a block of the loops: values saved a moment ago are still in the first-level cache when they
// are changed. An addition changes a third as much, and its tiles are saved by a call.
inline constexpr uint64_t kUpdateTileElements = 64;
inline constexpr uint64_t kAddTileElements = 256;
inline constexpr uint64_t kTileElementsMin = 64;
inline constexpr uint64_t kTileElementsMax = 256;

// Parameters of the update; bits never depend on them. Measured at start
// (memserver/update/tuning.h), or given.
struct Tuning {
  uint32_t prefetch_elements = kPrefetchElements;
  // For tests: the loops are called once per tile, so that there is a point between any two.
  bool each_tile = false;

  bool operator==(const Tuning&) const = default;
};

// The progress of a piece; one 64-bit value. Zero: version 0, nothing begun.
struct Progress {
  enum class State : uint8_t {
    // Elements below `begin` hold the new values, the others the old ones; no tile is open.
    kClosed = 0,
    kOpen = 1,      // as kClosed, but the tile at `begin` may be torn: restore it
    kFinished = 2,  // all elements hold the new values
  };
  uint64_t version = 0;  // below 2^39
  uint64_t begin = 0;    // a multiple of kTileElementsMin, below 2^28; 0 if finished
  State state = State::kClosed;
  // Elements of the open tile, unless the piece ends in it; 0 if none is open.
  uint64_t open = 0;

  bool operator==(const Progress&) const = default;
};

// The progress word of a piece, in its chunk's record. Layout: version in bits 25-63, begin / 64 in
// bits 3-24, and in bits 0-2 the state: 0 closed, 1 finished, 2, 3, 4 open with 64, 128, 256
// elements. States 5 to 7 are impossible.
class ProgressWord {
 public:
  // A state from 5 to 7 is read as an open tile of 0 elements, which cannot be restored.
  Progress Load() const;
  // Ordered after all earlier stores of this thread and before all later ones.
  void Store(const Progress& progress);
  static uint64_t BitsOf(const Progress& progress);

 private:
  std::atomic<uint64_t> bits_{0};
};
static_assert(sizeof(ProgressWord) == 8 && std::atomic<uint64_t>::is_always_lock_free);

// A plane that an update changes in place: 8 to 32 bits per element, or 1: a scale of 32 bits per
// block of 32.
struct ChangedPlane {
  std::byte* data = nullptr;
  uint64_t bits = 0;
};
inline constexpr uint32_t kChangedPlanesMax = 6;
using ChangedPlanes = std::array<ChangedPlane, kChangedPlanesMax>;  // null behind the last

// One undo area: the tile that it holds, and the tile's old values, plane behind plane. Zeroed
// memory is an empty area.
struct alignas(64) UndoArea {
  // fp32 master, momentum and variance: no form of states has more.
  static constexpr uint64_t kBytesMax = kTileElementsMax * 12;

  std::atomic<uint64_t> piece;  // identity; 0: empty or being written
  uint64_t version;
  uint64_t begin;  // of the tile, in its piece
  uint64_t count;  // elements of the tile
  uint64_t reserved[4];
  std::byte values[kBytesMax];
};
static_assert(sizeof(UndoArea) == 64 + UndoArea::kBytesMax);

// Elements [begin, end) of a piece that share one set of factors: a parameter, or its part in the
// piece.
struct GroupRun {
  uint64_t begin;
  uint64_t end;
  StepFactors factors;
  RandomPlace random = {};  // of the element at `begin`
};

// A run of a chunk's elements that one worker updates to `version`.
struct Piece {
  uint64_t identity;  // not 0; unique among all pieces in kept memory, and the same after a restart
  uint64_t version;   // of the update; the progress word holds an older one before it
  UpdateSpan planes;
  std::span<const GroupRun> runs;  // ascending, disjoint; elements outside of all are left alone
  ProgressWord* progress;
};

// sum[i] += addend[i] for one micro-batch of one shard, exactly once.
struct AddPiece {
  uint64_t identity;  // as above
  // Corresponds to the version: grows with every addition that uses this progress word.
  uint64_t sequence;
  float* sum;
  const void* addend;  // does not change before the piece is finished
  DType dtype;         // of the addend
  uint64_t count;
  ProgressWord* progress;
};
// A piece's progress counts in units of kTileElementsMin, in 22 bits.
inline constexpr uint64_t kPieceElementsMax = (uint64_t{1} << 22) * kTileElementsMin;

struct Tiles;  // the common part of an update and an addition

class TileUpdate {
 public:
  // `areas` are this worker's own, in kept memory, and outlive the object.
  TileUpdate(const Kernels& kernels, std::span<UndoArea, 2> areas, const Tuning& tuning = {});
  // Takes effect with the next piece.
  void SetTuning(const Tuning& tuning) { tuning_ = tuning; }

  // Brings `piece` to its version: from its first tile, or from where an interrupted run stopped;
  // does nothing if it is finished. No tile of it may be open (see RestoreOpenTile).
  void Run(const Piece& piece);
  void Add(const AddPiece& piece);

 private:
  UndoArea* AreaOf(uint64_t first, uint64_t length) const;
  // Steps 1 and 2 for the tile at `first`, which has `count` elements, and `length` unless the
  // piece ends in it.
  void OpenTile(const Tiles& tiles, uint64_t first, uint64_t count, uint64_t length) const;
  void SaveTile(const Tiles& tiles, uint64_t first, uint64_t count, UndoArea* area) const;
  // Updates `count` elements of one parameter: whole tiles, each opened by the loops.
  void UpdateWholeTiles(const Piece& piece, const GroupRun& run, uint64_t first,
                        uint64_t count) const;
  void UpdateCutTile(const Piece& piece, uint64_t first, uint64_t count) const;

  const Kernels& kernels_;
  const std::span<UndoArea, 2> areas_;
  Tuning tuning_;
};

// The result of RestoreOpenTile.
enum class RestoreOutcome {
  kNothingOpen,  // Run continues, or does nothing if the piece is finished
  kRestored,     // the open tile has its old values again; Run continues with it
  kUndoLost,     // kept memory contradicts itself; do not trust the piece
};

// Recovers one piece. Call it for *every* piece before any worker runs, because a worker overwrites
// its areas; `areas` are those of all workers. May itself be interrupted and repeated.
RestoreOutcome RestoreOpenTile(const Piece& piece, std::span<const UndoArea> areas);
RestoreOutcome RestoreOpenTile(const AddPiece& piece, std::span<const UndoArea> areas);

}  // namespace tidepool::optim

// TileUpdate: the crash-safe update (and addition of gradients), in place and tile by tile, with two alternating undo areas per worker.
// Areas, progress words and planes lie in kept memory, which outlives a killed process.
//
// One worker thread per TileUpdate and its two areas; one worker at a time per piece; recovery runs before any worker starts.
// For tile k of a piece:
//   1. save the old values (master, momentum, variance; or the sum) into area k mod 2     optim.tile_saved
//   2. progress word := (version, tile k open)                                optim.tile_progress
//   3. update the tile in place                                               optim.tile_written
// and, after the last one, progress word := (version, finished)               optim.piece_finished
//
//   tile      0          1          2
//   area 0    save 0 ............   save 2       An area is overwritten only when the progress word has left its tile, so at every
//   area 1               save 1 ............     instruction the open tile, the only one that may be torn, has its old values in an area.
//   progress       0 open    1 open     2 open  finished
//
// Invariants:
// 1. A tile is written only while the progress word says that it is open.
// 2. While a piece has an open tile, some area names (piece, version, tile) and holds the tile's old values whole.
// 3. The gradient is not changed before the piece is finished: it is the redo log (write-ahead logging with undo and redo, per tile).
// 4. The progress word belongs to the piece, not to the worker: a finished piece stays finished when its worker takes the next one.
// A crash here is a killed process: stores take effect in program order. Power loss ends the memory itself and is not covered.
// param16 needs no undo: a repeated tile writes it again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "optim/kernels.h"
#include "optim/update_rule.h"

namespace tidepool::optim {

// Half the distance at which the update loop prefetches (adam_loop.h), so that a tile has arrived in the first cache when it is saved.
inline constexpr uint64_t kTileElements = 256;

// How far a piece has come; one 64-bit value. Zero: version 0, nothing begun.
struct Progress {
  enum class State : uint8_t {
    kClosed = 0,    // tiles below `tile` hold the new values, the others the old ones; no tile is open
    kOpen = 1,      // as kClosed, but `tile` itself may be torn: restore it
    kFinished = 2,  // all tiles hold the new values
  };
  uint64_t version = 0;  // below 2^40
  uint64_t tile = 0;     // below 2^22; 0 where finished
  State state = State::kClosed;

  bool operator==(const Progress&) const = default;
};

// The progress word of a piece, in its chunk's record. Layout: version in bits 24-63, tile in bits 2-23, state in bits 0-1.
class ProgressWord {
 public:
  Progress Load() const;
  // All earlier stores of this thread come before it, all later ones after it.
  void Store(const Progress& progress);

 private:
  std::atomic<uint64_t> bits_{0};
};
static_assert(sizeof(ProgressWord) == 8 && std::atomic<uint64_t>::is_always_lock_free);

// One undo area: which tile it holds, and the tile's old values. Zeroed memory is an empty area.
struct alignas(64) UndoArea {
  std::atomic<uint64_t> piece;  // identity; 0: empty or being written
  uint64_t version;
  uint64_t tile;
  uint64_t count;  // elements of the tile
  uint64_t reserved[4];
  float master[kTileElements];
  float momentum[kTileElements];
  float variance[kTileElements];
};
static_assert(sizeof(UndoArea) == 64 + 3 * kTileElements * sizeof(float));

// Elements [begin, end) of a piece that share one set of factors.
struct GroupRun {
  uint64_t begin;
  uint64_t end;
  AdamFactors factors;
};

// A run of a chunk's elements that one worker updates to `version`.
struct Piece {
  uint64_t identity;  // not 0; unique among all pieces in kept memory, and the same after a restart
  uint64_t version;   // of the update; the progress word holds an older one before it
  UpdateSpan planes;
  std::span<const GroupRun> runs;  // ascending, disjoint; elements in none of them are left alone
  ProgressWord* progress;
};

// sum[i] += addend[i] for one micro-batch of one shard, exactly once.
struct AddPiece {
  uint64_t identity;  // as above
  uint64_t sequence;  // takes the version's place: grows with every addition that uses this progress word
  float* sum;
  const void* addend;  // does not change before the piece is finished
  DType dtype;         // of the addend
  uint64_t count;
  ProgressWord* progress;
};
// A piece's progress counts its tiles in 22 bits.
inline constexpr uint64_t kPieceElementsMax = (uint64_t{1} << 22) * kTileElements;

struct Tiles;  // what an update and an addition have in common

class TileUpdate {
 public:
  // `areas` are this worker's own, in kept memory, and outlive the object.
  TileUpdate(const Kernels& kernels, std::span<UndoArea, 2> areas);

  // Brings `piece` to its version: from its first tile, or from where an interrupted run stopped; nothing if it is finished. No tile of it
  // may be open (see RestoreOpenTile).
  void Run(const Piece& piece);
  void Add(const AddPiece& piece);

 private:
  template <typename Apply>
  void RunTiles(const Tiles& tiles, Apply apply);
  void SaveTile(const Tiles& tiles, uint64_t tile, uint64_t count) const;
  void UpdateTile(const Piece& piece, uint64_t first, uint64_t count) const;

  const Kernels& kernels_;
  const std::span<UndoArea, 2> areas_;
};

enum class RestoreOutcome {
  kNothingOpen,  // Run goes on, or does nothing where the piece is finished
  kRestored,     // the open tile has its old values again; Run goes on with it
  kUndoLost,     // kept memory contradicts itself; do not trust the piece
};

// Recovery of one piece. Call it for *every* piece before any worker runs, because a worker overwrites its areas; `areas` are those of all
// workers. May itself be interrupted and repeated.
RestoreOutcome RestoreOpenTile(const Piece& piece, std::span<const UndoArea> areas);
RestoreOutcome RestoreOpenTile(const AddPiece& piece, std::span<const UndoArea> areas);

}  // namespace tidepool::optim

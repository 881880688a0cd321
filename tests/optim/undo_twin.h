// UndoTwin: the undo-tile protocol written a second time, with rules that can be broken one by one.
// A harness that finds no fault in a broken twin would find none in the real one either.
//
// One thread, on an UndoWorld.
#pragma once

#include "tests/optim/undo_world.h"

namespace tidepool::optim {

struct TwinRules {
  bool two_areas = true;           // tile k is saved in area k mod 2; false: always in area 0
  bool progress_per_piece = true;  // false: one word per worker, which names the piece it works on
  bool clear_before_save = true;   // an area is marked empty while it is overwritten
  bool save_before_open = true;    // the old values are saved before the tile counts as open
  bool restore_all_first = true;   // recovery restores every piece before any worker runs
};

class UndoTwin {
 public:
  UndoTwin(const TwinRules& rules, const Kernels& kernels, UndoWorld& world)
      : rules_(rules), kernels_(kernels), world_(world) {}

  // As TileUpdate::Run of `worker`.
  void Run(uint64_t worker, uint64_t piece);
  // As Recover in undo_world.h. False if an open tile has no undo.
  bool Recover();
  // Only the restoring part.
  bool Restore(uint64_t piece);

 private:
  struct Place {
    uint64_t piece;
    Progress progress;
  };
  Place Load(uint64_t worker, uint64_t piece) const;
  void Store(uint64_t worker, const Place& place);
  void Save(uint64_t worker, uint64_t piece, uint64_t tile);
  void Update(uint64_t piece, uint64_t tile);
  bool RestoreTile(uint64_t piece, uint64_t tile);
  bool RestorePerWorker();

  const TwinRules rules_;
  const Kernels& kernels_;
  UndoWorld& world_;
};

}  // namespace tidepool::optim

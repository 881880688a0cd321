// Worker: does one Work at a time; run by each thread of the team, or by the inline team.
//
// One thread per object; it must be in flush-denormals mode (optim/kernels/float_mode.h), or bits
// would differ between workers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "memserver/update/work.h"
#include "optim/kernels/kernels.h"
#include "optim/undo_tile.h"

namespace tidepool::memserver {

class Worker {
 public:
  // `areas` lie in kept memory and are this worker's own.
  Worker(const optim::Kernels& kernels, std::span<optim::UndoArea, 2> areas)
      : kernels_(kernels), update_(kernels, areas) {}
  WorkDone Do(const Work& work);
  void SetTuning(const optim::Tuning& tuning) { update_.SetTuning(tuning); }

 private:
  bool Scan(const Work& work) const;
  void Update(const Work& work);
  bool UpdateStaged(const Work& work);
  void NarrowGaps(const optim::UpdateSpan& planes) const;
  static void Stage(const Work& work);
  static void MoveOut(const Work& work);
  bool Unstage(const Work& work) const;
  bool FillWindow(const Work& work) const;

  const optim::Kernels& kernels_;
  optim::TileUpdate update_;
  // Receives the 16-bit weights of an update if nobody keeps them. Its pages become present on
  // first use.
  const std::unique_ptr<uint16_t[]> unkept_ =
      std::make_unique_for_overwrite<uint16_t[]>(shm::kPieceElements);
  // Runs of the current piece; grows to the largest number and stays.
  std::vector<optim::GroupRun> runs_;
};

}  // namespace tidepool::memserver

// JobWeights: where the weights of one job land when ranks put them, and the window for weights
// that are on NVMe alone (decision 027).
//
// Serve loop. JobStates owns it; specification, placement and chunks outlive it.
// Invariant: the 16-bit plane of a chunk whose weights are on NVMe alone is null, or the slot of
// the window (weight_window.h) that the chunk holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "memserver/residency/chunk_table.h"
#include "memserver/residency/job_placement.h"
#include "memserver/residency/pool/moment_landing.h"
#include "memserver/residency/weight_window.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

class JobWeights {
 public:
  JobWeights(const shm::JobSpec* spec, const JobPlacement* placement, ChunkTable* chunks)
      : spec_(spec), placement_(placement), chunks_(chunks) {}
  JobWeights(const JobWeights&) = delete;
  JobWeights& operator=(const JobWeights&) = delete;

  // Makes the window out of the planes of its areas. Call once, when the chunks are laid out.
  void LayOut();

  // Empty if no weights are on NVMe alone.
  WeightWindow& window() { return window_; }
  const WeightWindow& window() const { return window_; }

  // Where fp32 weights land when they are put: in the master, or, if that is spilled, in planes
  // that are unused before the first step. The low halves of a split master land there; its high
  // halves land where they are fetched from (PutHighBytes).
  std::byte* PutBytes(ChunkId id, uint64_t element) const;
  std::byte* PutHighBytes(ChunkId id, uint64_t element) const;
  // The memory for put moments of chunks off the host.
  MomentLanding& landing() { return landing_; }
  const MomentLanding& landing() const { return landing_; }
  // True if fp32 weights land in the 16-bit plane and the gradient slot behind it.
  bool LandsAcrossPlanes(ChunkId id) const;
  // True if the area where the chunk's weights land is free of the chunk that had it before.
  bool MayLand(ChunkId id) const;
  // False: the rank would wait for an area that only its own later requests would free.
  bool IsPutInOrder(ChunkId id, Rank rank);

  // True if the weights can be copied now; always for chunks with a plane of their own.
  bool HoldsWeights(ChunkId id) const;
  // True if the weights are not in the window and may be read into it: no update is due that
  // changes them.
  bool MayFill(ChunkId id) const;
  // Gives the chunk the slot of a chunk that may go and whose next use is later than `until_next`;
  // WeightWindow::kNone: there is none.
  uint32_t GiveSlot(ChunkId id, uint64_t until_next, bool filling);
  // The weights of `epoch` are in the slot, which is the chunk's plane from here on. False: the
  // chunk has a newer version by now.
  bool EndFill(uint32_t slot, uint64_t epoch);
  // The first piece of the chunk's update begins: it may leave the new weights in the window, if
  // they are wanted soon.
  void HoldForUpdate(ChunkId id);

 private:
  const Chunk& At(ChunkId id) const { return chunks_->saved(id); }
  Chunk& At(ChunkId id) { return chunks_->chunks()[id]; }

  const shm::JobSpec* const spec_;
  const JobPlacement* const placement_;
  ChunkTable* const chunks_;
  WeightWindow window_;
  MomentLanding landing_;
  // By rank: the chunks of the window before this one have been put.
  std::vector<ChunkId> put_behind_;
};

}  // namespace tidepool::memserver

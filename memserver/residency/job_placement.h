// JobPlacement: where the states of one job lie: its extents of the host pool, its NVMe
// directories, and how much it takes of both.
//
// Serve loop. JobStates owns it; specification and pool outlive it.
// Invariants:
//  1. records, staging buffers and planes of all chunks were taken from the pool together, exactly
//     the bytes that admission has counted, and are returned together (destructor), both as a few
//     runs, whatever the number of chunks. Where each plane lies in them is decided later, in
//     slices. The planes that a demotion moves lie last, so they too are returned as a few runs;
//  2. chunks on NVMe are the last ones; the first of them may have been demoted, which happens to a
//     job at most once, and never to a chunk on a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "memserver/residency/chunk_planes.h"
#include "memserver/residency/kept/job_records.h"
#include "memserver/residency/placement.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/residency/pool/plane_spacing.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

class JobPlacement {
 public:
  // Takes nothing yet.
  JobPlacement(const shm::JobSpec* spec, HostPool* pool, Placement placement = {});
  ~JobPlacement();
  JobPlacement(const JobPlacement&) = delete;
  JobPlacement& operator=(const JobPlacement&) = delete;

  // Takes everything that the job has in the pool, and lays out records and staging buffers. The
  // bytes are not zeroed. False: the pool has no runs for it, and nothing was taken.
  bool TakeNew();
  // Places the planes of the next chunk. Call once for each, in order, after TakeNew.
  void PlaceNext();
  // Number of chunks whose planes are placed.
  ChunkId placed() const { return placed_; }
  // Takes the places that a former server listed, which also say which chunks are spilled and which
  // were demoted. False: the job cannot have these places, or they are not free.
  bool TakeKept(const KeptJob& kept);
  // True if TakeNew would find its runs if `released` were free as well. Nothing changes.
  bool FindsRuns(std::span<const Extent> released) const;

  // The runs of the pool that the job holds.
  std::span<const Extent> runs() const { return runs_; }
  // Records first, then the staging buffers, then the planes of each placed chunk. A plane
  // elsewhere has no bytes, and an offset that says where (kSpilledExtent, kGpuExtent).
  std::span<const Extent> extents() const { return extents_; }
  // Afterwards the extents and planes are unknown here; another thread frees the list.
  std::vector<Extent> GiveUpExtents() { return std::exchange(extents_, {}); }
  ChunkPlanes PlanesOf(ChunkId id) const;
  // The staging buffer of a rank; null if nothing is staged.
  std::byte* staging(Rank rank) const { return staging_[rank]; }
  uint64_t pool_bytes() const { return pool_bytes_; }
  // The pool bytes that admission counts for the job.
  uint64_t BytesToTake() const {
    return shm::HostBytesOf(*spec_, placement_.first_spilled, placement_.weights);
  }

  // Whether, and which, chunks have their states on NVMe; chunks on GPUs are not among them.
  bool spills() const { return placement_.spills(); }
  bool IsSpilled(ChunkId id) const { return placement_.IsSpilled(id); }
  // The offset in the directory is unknown here (ChunkTable::SetSpillOffsets).
  SpillPlace SpillOf(ChunkId id) const;
  const shm::WeightSpill& weights() const { return placement_.weights; }
  uint64_t chunks_spilled() const {
    return spills() ? spec_->chunks.size() - placement_.first_spilled : 0;
  }
  // Bytes in each directory, two slots a chunk; empty if nothing is spilled.
  const std::vector<uint64_t>& nvme_bytes() const { return placement_.nvme_bytes; }
  uint64_t nvme_total() const { return placement_.nvme_total() + held_bytes_; }

  // Demotion moves the states of all chunks on the host to NVMe together. chunks_on_host: the
  // chunks before this one, of a job without states on GPUs.
  ChunkId chunks_on_host() const {
    return static_cast<ChunkId>(std::min<uint64_t>(placement_.first_spilled, spec_->chunks.size()));
  }
  // Pool bytes that a demotion frees, until it has freed them, and their runs.
  uint64_t movable_bytes() const;
  void AddMovable(std::vector<Extent>* extents) const;
  // Counts additional NVMe ranges of the job, for states on their way there.
  void HoldRanges(uint64_t bytes) { held_bytes_ = bytes; }
  // Three steps: the chunks on the host belong where `plan` says from here on; then, chunk by
  // chunk, their planes are forgotten; then the pool gets their memory back.
  void BeginMove(const MovePlan& plan);
  void MoveNext(ChunkId id);
  void EndMove();
  // The chunks before this one were demoted; and their bytes in each directory.
  ChunkId demoted() const { return demoted_; }
  const std::vector<uint64_t>& demoted_bytes() const { return demoted_bytes_; }

 private:
  struct Taking {  // bytes of one run, for one or two planes; or a plane not in the pool
    uint64_t bytes = 0, behind = 0;
    uint64_t elsewhere = 0;
    uint64_t slack = 0;    // taken in addition, so that planes can lie apart
    bool movable = false;  // a demotion moves it
    uint64_t all() const { return bytes + behind + slack; }
  };
  std::vector<uint64_t> HeadSizes() const;
  std::vector<uint64_t> ExtentSizes() const;
  template <typename Visit>
  void ForTakings(ChunkId id, Visit visit) const;
  struct Place {  // position of the next plane in the runs
    size_t run = 0;
    uint64_t carved = 0;  // bytes used of that run
  };
  uint64_t StayingFrom(uint64_t chunk) const;
  uint64_t MovableFrom(uint64_t chunk) const;
  RunWants Wants() const;
  void SortRuns();
  Extent Carve(uint64_t bytes, Place* place);
  std::array<uint64_t, kPlanesMax> PlaneSizes(ChunkId id) const;
  bool ReadPlacement(std::span<const uint64_t> offsets);
  bool ReadWeightPlacement(std::span<const uint64_t> offsets);
  uint64_t WeightBytesListed(ChunkId id, uint64_t plane_bytes) const;
  void CountKept();
  void LayOutStaging();
  size_t FirstExtentOf(ChunkId id) const;
  void NoteDemoted(ChunkId demoted);
  template <typename Visit>
  void ForEachMovable(ChunkId id, Visit visit) const;

  const shm::JobSpec* const spec_;
  HostPool* const pool_;
  Placement placement_;
  std::vector<Extent> runs_;
  size_t first_movable_ = 0;  // index of a run; those before it stay
  std::vector<Extent> extents_;
  uint64_t records_bytes_;  // first extent; smaller in earlier layouts
  size_t head_ = 0;         // extents before those of planes
  Place stays_, moves_;     // of the next plane of either kind
  ChunkId placed_ = 0;
  PlaneSpacing spacing_;
  uint64_t pool_bytes_ = 0;
  std::vector<std::byte*> staging_;  // by rank
  ChunkId demoted_ = 0;
  std::vector<uint64_t> demoted_bytes_;  // by directory; part of the placement's
  uint64_t held_bytes_ = 0;
  uint64_t leaving_bytes_ = 0;  // that EndMove gives back
};

}  // namespace tidepool::memserver

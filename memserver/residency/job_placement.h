// JobPlacement: where the states of one job lie: its extents of the host pool, its directories on
// NVMe, and what it takes of both.
//
// Serve loop. JobStates owns it; specification and pool outlive it.
// Invariants:
//  1. records, staging buffers and planes of all chunks were taken from the pool together, exactly
//     the bytes that admission has counted, and go back together (destructor), both as a few runs,
//     whatever the number of chunks; where in these each plane lies is told later, in slices. The
//     planes that a demotion moves lie behind all others, so that they too go back as a few runs;
//  2. chunks on NVMe are the last ones; the first of them may have been demoted, which happens to
//     a job at most once, and never to a chunk on a GPU.
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
  // Then places the planes of the next chunk. Call once for each, in order.
  void PlaceNext();
  // Chunks whose planes have their places.
  ChunkId placed() const { return placed_; }
  // Takes the places that a server before this one has listed, which also say what is spilled and
  // what is demoted. False: they are no places that the job can have, or not free.
  bool TakeKept(const KeptJob& kept);
  // Would TakeNew find its runs if `released` were free as well? Nothing changes.
  bool FindsRuns(std::span<const Extent> released) const;

  // What the job holds of the pool.
  std::span<const Extent> runs() const { return runs_; }
  // Records first, then the staging buffers, then the planes of each chunk that was placed. What
  // lies elsewhere has no bytes, and an offset that says where (kSpilledExtent, kGpuExtent).
  std::span<const Extent> extents() const { return extents_; }
  // Afterwards neither they nor the planes are known here; another thread frees the list.
  std::vector<Extent> GiveUpExtents() { return std::exchange(extents_, {}); }
  ChunkPlanes PlanesOf(ChunkId id) const;
  // The staging buffer of a rank; null where nothing is staged.
  std::byte* staging(Rank rank) const { return staging_[rank]; }
  uint64_t pool_bytes() const { return pool_bytes_; }
  // The pool bytes that admission counts for the job.
  uint64_t BytesToTake() const {
    return shm::HostBytesOf(*spec_, placement_.first_spilled, placement_.weights);
  }

  // Which chunks have their states on NVMe; none of those on GPUs.
  bool spills() const { return placement_.spills(); }
  bool IsSpilled(ChunkId id) const { return placement_.IsSpilled(id); }
  // The offset in the directory is not known here (ChunkTable::SetSpillOffsets).
  SpillPlace SpillOf(ChunkId id) const;
  const shm::WeightSpill& weights() const { return placement_.weights; }
  uint64_t chunks_spilled() const {
    return spills() ? spec_->chunks.size() - placement_.first_spilled : 0;
  }
  // Bytes in each directory, two slots a chunk; empty where nothing is spilled.
  const std::vector<uint64_t>& nvme_bytes() const { return placement_.nvme_bytes; }
  uint64_t nvme_total() const { return placement_.nvme_total() + held_bytes_; }

  // Demotion: the states of all chunks on the host go to NVMe together. These are the chunks before
  // this one, of a job that has no states on GPUs.
  ChunkId chunks_on_host() const {
    return static_cast<ChunkId>(std::min<uint64_t>(placement_.first_spilled, spec_->chunks.size()));
  }
  // Bytes that the pool gets back by a demotion, until it has them, and the runs that they are.
  uint64_t movable_bytes() const;
  void AddMovable(std::vector<Extent>* extents) const;
  // Counts ranges on NVMe that the job holds besides, for states on their way there.
  void HoldRanges(uint64_t bytes) { held_bytes_ = bytes; }
  // The chunks on the host lie where `plan` says from here on; then, for each of them, its planes
  // are known no more; then the pool has their memory back.
  void BeginMove(const MovePlan& plan);
  void MoveNext(ChunkId id);
  void EndMove();
  // The chunks before this one were demoted; and their bytes in each directory.
  ChunkId demoted() const { return demoted_; }
  const std::vector<uint64_t>& demoted_bytes() const { return demoted_bytes_; }

 private:
  struct Taking {  // bytes of one run, for one plane or two; or a plane that has no place there
    uint64_t bytes = 0, behind = 0;
    uint64_t elsewhere = 0;
    uint64_t slack = 0;    // taken besides, so that planes can lie apart
    bool movable = false;  // a demotion moves it
    uint64_t all() const { return bytes + behind + slack; }
  };
  std::vector<uint64_t> HeadSizes() const;
  std::vector<uint64_t> ExtentSizes() const;
  template <typename Visit>
  void ForTakings(ChunkId id, Visit visit) const;
  struct Place {  // in the runs, of the next plane
    size_t run = 0;
    uint64_t carved = 0;  // bytes of it
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
  size_t first_movable_ = 0;  // of the runs; those before it stay
  std::vector<Extent> extents_;
  uint64_t records_bytes_;  // of the first extent; fewer in jobs of an earlier layout
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

// Spill: which states of a job may lie on NVMe, how they lie there, and what that leaves in the
// host pool: one sum, term by term, used by admission and by `trainer estimate`.
//
// Pure functions, any thread. A chunk spills whole or not at all. What spills: master, momentum and
// variance, in the form of the job's states. What stays on the host: the plane that trainers fetch
// (the 16-bit one; for fp32 jobs a copy of the master), the gradient slot, staging buffers and
// records. A split master lies on NVMe with both halves, so that a piece is whole by itself; the
// upper ones on the host are a copy then.
// Weights of 16-bit jobs may spill as well, last of all (decision 027): those of the last chunks
// are in their pieces alone, and come to the host through a window of areas that all of them share.
// On NVMe a chunk has two slots, for states of even and of odd epochs; a slot has its update pieces
// one behind the other, each as
//   page of its name and checksums | master | upper halves (split) | momentum | variance
// with each plane from a multiple of 64 bytes on, and the whole rounded up to 4 KiB.
#pragma once

#include <cstdint>

#include "shm/spec/job_spec.h"

namespace tidepool::shm {

// Spills nothing, as the first chunk that spills.
inline constexpr ChunkId kNoSpill = ~ChunkId{0};
// Staging slots of the server hold a piece of fp32 states; no form has more.
inline constexpr uint64_t kSpilledPlanesMax = 3;

// 16-bit weights that are on the host in a window alone: those of the chunks from `first` on, whose
// states are on NVMe. An area has room for fp32 weights of the largest of them, which land there
// when they are put; later it is two slots, of the 16-bit weights of a chunk each.
struct WeightSpill {
  ChunkId first = kNoSpill;
  uint32_t areas = 0;  // fewer than the chunks from `first` on would fill

  bool any() const { return areas > 0; }
  friend bool operator==(const WeightSpill&, const WeightSpill&) = default;
};
// More slots than ranks fetch chunks at once; what else would be in them is better off with a place
// of its own.
inline constexpr uint32_t kWeightAreasMax = 4;
// Of one slot of the window, and of an area.
uint64_t WeightSlotBytes(const JobSpec& spec, ChunkId first);
inline uint64_t WeightAreaBytes(const JobSpec& spec, ChunkId first) {
  return 2 * WeightSlotBytes(spec, first);
}

// Only where that takes something from the host.
bool MaySpill(const JobSpec& spec);
// Where the planes of a piece begin, behind the page before it; the master at 0.
struct SpilledPiece {
  static constexpr uint64_t kNone = ~uint64_t{0};  // the job has no such plane

  uint64_t high = kNone;  // upper halves of a split master; the master is the rest then
  uint64_t momentum = kNone;
  uint64_t variance = kNone;
  uint64_t bytes = 0;  // of all, rounded up to pages
};
SpilledPiece SpilledPieceOf(const JobSpec& spec, uint64_t elements);
// What is read of a piece for its 16-bit weights alone: the beginning, with all of the master in
// it.
inline constexpr uint64_t kPieceFrontBytesMax = kPieceElements * sizeof(float);
inline uint64_t SpilledPieceBytes(const JobSpec& spec, uint64_t elements) {
  return SpilledPieceOf(spec, elements).bytes;
}
// One slot of a chunk, and both.
uint64_t SlotBytes(const JobSpec& spec, ChunkId chunk);
inline uint64_t SpilledChunkBytes(const JobSpec& spec, ChunkId chunk) {
  return 2 * SlotBytes(spec, chunk);
}
// Where piece `piece` begins in its slot.
uint64_t PieceOffset(const JobSpec& spec, uint32_t piece);

// As PlaneBytesOf, of what a spilled chunk, or one whose states lie on a GPU, leaves on the host; a
// plane that it does not leave has 0 bytes.
PlaneBytes HostPlaneBytesOf(const JobSpec& spec, ChunkId chunk, bool spilled);
// As StateBytesOf, when the chunks from `first_spilled` on spill, and such weights, and the states
// of states_on_gpu lie there. (StateBytesOf itself counts these as if they lay on the host.)
StateBytes HostStateBytesOf(const JobSpec& spec, ChunkId first_spilled,
                            const WeightSpill& weights = {});
// The total of these, without a way through the chunks where the description has its sums.
uint64_t HostBytesOf(const JobSpec& spec, ChunkId first_spilled, const WeightSpill& weights = {});
// What the pool has less of when the states of `chunk` do not lie on the host.
uint64_t BytesOffHost(const JobSpec& spec, ChunkId chunk);
// Which weights are on NVMe alone when the chunks from `first_spilled` on spill: none where all
// weights find room in so many bytes of the pool; else as few as can be behind the largest window
// that does; where nothing is enough, those that leave the fewest bytes there.
WeightSpill WeightsSpilledFor(const JobSpec& spec, ChunkId first_spilled, uint64_t pool_bytes);
// The fewest bytes of the pool that the job can do with.
uint64_t LeastHostBytesOf(const JobSpec& spec);
// Bytes on NVMe then; what lies on GPUs never spills.
uint64_t NvmeBytesOf(const JobSpec& spec, ChunkId first_spilled);

}  // namespace tidepool::shm

// StateFootprint: which states of a job may lie on NVMe, their layout there, and what that leaves
// in the host pool: one sum, term by term, used by admission and by `trainer estimate`.
//
// Pure functions, any thread. A chunk spills whole or not at all. These planes spill: master,
// momentum and variance, in the form of the job's states. These stay on the host: the plane that
// trainers fetch (the 16-bit one; for fp32 chunks a copy of the master), the gradient slot, staging
// buffers and records. A split master lies on NVMe with both halves, so that a piece is complete;
// the upper halves on the host are a copy then. Weights of 16-bit chunks may spill as well, last of
// all (decision 027): those of the last chunks are only in their pieces, and come to the host
// through a window of areas that all of them share.
// On NVMe a chunk has two slots, for states of even and of odd epochs; a slot has its update pieces
// consecutively, each as
//   page of its name and checksums | master | upper halves (split) | momentum | variance
// with each plane from a multiple of 64 bytes on, and the whole rounded up to 4 KiB.
#pragma once

#include <cstdint>

#include "shm/spec/job_spec.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/weight_windows.h"

namespace tidepool::shm {

// Staging slots of the server hold a piece of fp32 states; no form is larger.
inline constexpr uint64_t kSpilledPlanesMax = 3;

// Bytes of one slot of the window; an area has WeightAreaBytes.
uint64_t WeightSlotBytes(const JobSpec& spec, ChunkId first);
inline uint64_t WeightAreaBytes(const JobSpec& spec, ChunkId first) {
  return 2 * WeightSlotBytes(spec, first);
}

// True only if spilling a chunk frees host memory, for each chunk.
bool MaySpill(const JobSpec& spec);
// Offsets of the planes of a piece, behind its header page; the master is at 0.
struct SpilledPiece {
  static constexpr uint64_t kNone = ~uint64_t{0};  // the job has no such plane

  uint64_t high = kNone;  // upper halves of a split master, whose plane is the lower halves then
  uint64_t momentum = kNone;
  uint64_t variance = kNone;
  uint64_t bytes = 0;  // total, rounded up to pages
};
// The layout of a piece of this many elements of the chunk.
SpilledPiece SpilledPieceOf(const JobSpec& spec, ChunkId chunk, uint64_t elements);
// Most bytes of a piece that are read for its 16-bit weights alone: the front, with the whole
// master.
inline constexpr uint64_t kPieceFrontBytesMax = kPieceElements * sizeof(float);
inline uint64_t SpilledPieceBytes(const JobSpec& spec, ChunkId chunk, uint64_t elements) {
  return SpilledPieceOf(spec, chunk, elements).bytes;
}
// Bytes of one slot of a chunk, and of both.
uint64_t SlotBytes(const JobSpec& spec, ChunkId chunk);
inline uint64_t SpilledChunkBytes(const JobSpec& spec, ChunkId chunk) {
  return 2 * SlotBytes(spec, chunk);
}
// Offset of piece `piece` in its slot.
uint64_t PieceOffset(const JobSpec& spec, ChunkId chunk, uint32_t piece);

// As PlaneBytesOf, for the part that stays on the host of a chunk that is spilled, or whose states
// lie on a GPU; a plane that does not stay has 0 bytes.
PlaneBytes HostPlaneBytesOf(const JobSpec& spec, ChunkId chunk, bool spilled);
// As StateBytesOf, with the chunks from `first_spilled` on and `weights` on NVMe, and the states of
// states_on_gpu on GPUs. (StateBytesOf itself counts these as if they lay on the host.)
StateBytes HostStateBytesOf(const JobSpec& spec, ChunkId first_spilled,
                            const WeightSpill& weights = {});
// The total of HostStateBytesOf, without visiting each chunk if the description has its sums.
uint64_t HostBytesOf(const JobSpec& spec, ChunkId first_spilled, const WeightSpill& weights = {});
// The part of it that is planes of the chunks from `from` on.
uint64_t HostPlanesFrom(const JobSpec& spec, uint64_t from, ChunkId first_spilled,
                        const WeightSpill& weights = {});
// Pool bytes of the planes of one chunk that does not spill; on a GPU: of those that stay.
uint64_t PooledPlanesOf(const JobSpec& spec, ChunkId chunk);
// Pool bytes of the planes of one chunk that leave the host entirely when it spills; and of the
// chunks from `from` on that are in the pool with all of their states.
uint64_t MovablePlanesOf(const JobSpec& spec, ChunkId chunk);
uint64_t MovablePlanesFrom(const JobSpec& spec, uint64_t from, ChunkId first_spilled);
// Pool bytes saved when the states of `chunk` do not lie on the host.
uint64_t BytesOffHost(const JobSpec& spec, ChunkId chunk);
// Which weights to keep on NVMe alone when the chunks from `first_spilled` on spill: none if all
// weights find room in `pool_bytes`; else as few as possible behind the largest window that fits;
// if nothing fits, those that leave the fewest bytes in the pool.
WeightSpill WeightsSpilledFor(const JobSpec& spec, ChunkId first_spilled, uint64_t pool_bytes);
// The fewest pool bytes that the job can run with.
uint64_t LeastHostBytesOf(const JobSpec& spec);
// Bytes on NVMe when the chunks from `first_spilled` on spill; states on GPUs never do.
uint64_t NvmeBytesOf(const JobSpec& spec, ChunkId first_spilled);

}  // namespace tidepool::shm

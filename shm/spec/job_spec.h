// JobSpec: everything memserver must know of a training job: chunks, parameters, optimizer, ranks,
// memory wanted.
//
// Any thread; a value type. The trainer makes it, Encode turns it into bytes for the control
// socket, Decode checks every number of such bytes (they come from a peer) and returns a spec that
// satisfies the invariants below, or an error that names the first broken one.
//
// Invariants (Validate checks them all):
//  1. counts lie within the limits below; the name is 1..63 characters of [A-Za-z0-9._-];
//  2. every chunk belongs to a data-parallel group; chunk.elements is a positive multiple of
//     (group's ranks x 16), so that shards are equal and start on 64 bytes;
//  3. parameters are in chunk order and, within a chunk, in order of element_begin, do not overlap,
//     lie inside their chunk, start on 64 bytes (fp32: 16 elements, 16-bit: 32 elements) and have
//     element_count = product of dims;
//  4. floats are finite and in range;
//  5. total bytes do not overflow 62 bits;
//  6. frozen chunks (shm/spec/frozen.h) have a positive multiple of 16 elements;
//  7. states on GPUs (shm/spec/gpu_states.h) are fp32 ones of Adam or AdamW, of chunks that there
//     are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/formats/content_hash.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "base/formats/optimizer.h"
#include "base/status.h"

namespace tidepool::shm {

// Ranks of one job on one node: a rank set is one 64-bit mask.
inline constexpr uint32_t kRanksMax = 64;
inline constexpr uint32_t kChunksMax = 1u << 20;  // 64 MiB chunks: 64 TiB
inline constexpr uint32_t kParametersMax = 1u << 18;
inline constexpr uint32_t kParameterGroupsMax = 64;
inline constexpr uint32_t kDataGroupsMax = 64;
inline constexpr uint32_t kMicroBatchesMax = 1u << 16;
inline constexpr uint32_t kDimsMax = 4;
inline constexpr size_t kNameMax = 95;  // of a parameter
inline constexpr size_t kJobNameMax = 63;
inline constexpr size_t kRunNoteMax = 480;  // bytes of a note in Hello, see shm/frames.h
inline constexpr uint64_t kSpecBytesMax = 64ull << 20;

// Kept memory of a job (memserver/residency/kept/kept_records.h): an update runs in pieces of a
// chunk, each with one progress word in a cache line of its own, because two workers update
// neighbours at the same time.
inline constexpr uint64_t kPieceElements = 256 * 1024;
// A shard whose gradients are added up is one piece, whose progress counts 256 elements in 22 bits.
inline constexpr uint64_t kAddedShardElementsMax = uint64_t{1} << 30;
// Weights of a split master are staged, and split by the serve loop (1 ms): one request puts at
// most so many bytes of them.
inline constexpr uint64_t kSplitPutBytesMax = uint64_t{4} << 20;
inline constexpr uint64_t kJobRecordBytes = 4096;
inline constexpr uint64_t kChunkRecordBytes = 64;
inline constexpr uint64_t kProgressBytes = 64;
inline constexpr uint64_t kShardRecordBytes = 16;
inline constexpr uint64_t kStagingRecordBytes = 64;

struct ParameterGroup {  // of the optimizer
  float lr_scale = 1;
  float weight_decay = 0;
};

// Ranks among which chunks of this group are sharded and their gradients reduced (Elixir v1,
// section IV)
struct DataGroup {
  uint64_t rank_mask = 0;  // bit r: rank r is a member
};

struct ChunkSpec {
  uint64_t elements = 0;  // padded, over all shards
  uint32_t data_group = 0;
  friend bool operator==(const ChunkSpec&, const ChunkSpec&) = default;
};

// Bytes that the job reads and never writes, shared with all jobs of the user that list the same.
// Its id comes behind those of `chunks`.
struct FrozenChunkSpec {
  uint64_t elements = 0;  // of the job's dtype
  ContentHash content;    // of exactly those bytes
  friend bool operator==(const FrozenChunkSpec&, const FrozenChunkSpec&) = default;
};

struct ParameterSpec {
  std::string name;
  std::vector<uint64_t> dims;  // row-major shape, at most kDimsMax; empty for a scalar
  uint32_t chunk = 0;
  uint32_t group = 0;          // index into parameter_groups
  uint64_t element_begin = 0;  // in the chunk
  uint64_t element_count = 0;
};

struct SpecSums;
// What is added up of one description (shm/spec/spec_sums.h). A copy may be changed, and has none.
struct KeptSums {
  KeptSums() = default;
  KeptSums(const KeptSums&) {}
  KeptSums(KeptSums&&) = default;
  KeptSums& operator=(const KeptSums& other) {
    if (this != &other) made.reset();
    return *this;
  }
  KeptSums& operator=(KeptSums&&) = default;
  ~KeptSums() = default;

  std::shared_ptr<const SpecSums> made;
};

struct JobSpec {
  std::string name;
  uint32_t world = 1;
  DType dtype = DType::kF32;  // of parameters in the rCache and of gradients on the wire
  OptimizerSpec optimizer;
  float max_grad_norm = 0;     // 0: no clipping
  uint32_t micro_batches = 1;  // gradient submissions per chunk and step
  // 1: gradients that are not finite skip the step; 0: they end it with an error.
  uint32_t loss_scaling = 0;
  uint64_t rcache_bytes = 0;  // of each rank's session; a multiple of 4 KiB
  std::vector<ParameterGroup> parameter_groups;
  std::vector<DataGroup> data_groups;
  std::vector<ChunkSpec> chunks;
  std::vector<ParameterSpec> parameters;  // which lie in `chunks`
  std::vector<FrozenChunkSpec> frozen;
  // The first so many of `chunks` have their fp32 states in memory of the ranks' GPUs.
  uint32_t states_on_gpu = 0;
  KeptSums sums;  // made by Decode; none otherwise. Nobody changes what was decoded.

  bool IsFrozen(ChunkId chunk) const {
    return chunk >= chunks.size() && chunk - chunks.size() < frozen.size();
  }
  const FrozenChunkSpec& Frozen(ChunkId chunk) const { return frozen[chunk - chunks.size()]; }
  // Number of shards of `chunk`, and which of them is `rank`'s (requires that rank is a member).
  uint32_t ShardCount(ChunkId chunk) const;
  uint32_t ShardIndex(ChunkId chunk, Rank rank) const;
  bool IsMember(ChunkId chunk, Rank rank) const;
  uint64_t ShardElements(ChunkId chunk) const;
  uint64_t TotalElements() const;   // with padding
  uint64_t ParameterCount() const;  // elements of parameters, without padding
};

Status Validate(const JobSpec& spec);
std::vector<std::byte> Encode(const JobSpec& spec);
// With its sums. Errors: kJobSpecBad. Cost is linear in bytes.size(); nothing is allocated beyond a
// small multiple of it.
Result<JobSpec> Decode(std::span<const std::byte> bytes);
// A 64-bit fingerprint of Encode(spec), by which ranks of one job are compared.
uint64_t Fingerprint(std::span<const std::byte> bytes);

// Bytes of the host pool that a job's states need: one sum, term by term, used by admission and by
// `trainer estimate`. The pool gives out whole pages, so each plane of each chunk, each rank's
// staging buffer and the records are rounded up to 4 KiB:
//   plane of a chunk   PooledBytes(bytes of the plane): RoundUp(bytes, 4 KiB), and the slack of a
//                      large one, with which the planes of a chunk are kept apart
//                      (base/formats/plane_slack.h); base/formats/optimizer.h says how many bytes,
//                      and which planes a rule has
//   staging of a rank  RoundUp(StagingBytes of its largest shard, 4 KiB), 0 when it is member of no
//                      chunk
//   records            RoundUp(kJobRecordBytes + chunks x kChunkRecordBytes
//                              + ranks x kStagingRecordBytes + pieces x kProgressBytes
//                              + shards x kShardRecordBytes
//                              + (parameters + extents + frozen chunks) x 8
//                              + encoded specification, 4 KiB)
// Frozen chunks are not the job's alone: FrozenPoolBytes (shm/spec/frozen.h).
struct StateBytes {
  uint64_t master = 0;    // 4 bytes an element, 2 where it is split
  uint64_t momentum = 0;  // 4, 2 or about 1.13 bytes an element; 0 where the rule has none
  uint64_t variance = 0;  // the same
  uint64_t param16 = 0;   // 2 bytes an element for 16-bit jobs, else 0 (master is fetched)
  uint64_t gradient = 0;  // 4 bytes for fp32 jobs or accumulation, else 2
  // A buffer a rank: incoming gradients that are to be added, weights that are to be split.
  uint64_t staging = 0;
  uint64_t records = 0;  // chunk records, step record, norm sums (kept memory)
  uint64_t total() const {
    return master + momentum + variance + param16 + gradient + staging + records;
  }
};
StateBytes StateBytesOf(const JobSpec& spec);
// Bytes of the planes of one chunk, in the order in which they lie in the pool; 0 for a plane that
// the job does not have.
struct PlaneBytes {
  uint64_t master = 0, momentum = 0, variance = 0, param16 = 0, gradient = 0;
};
PlaneBytes PlaneBytesOf(const JobSpec& spec, ChunkId chunk);
// Bytes of the staging buffer of a rank whose largest shard has so many elements, not rounded; 0:
// it has none.
uint64_t StagingBytes(const JobSpec& spec, uint64_t shard_elements);
// Extents of the pool that a job takes: its records, the staging buffers, and the planes of each
// chunk.
uint64_t ExtentCount(const JobSpec& spec);
// Elements of the largest shard of each rank, by rank; 0: it is member of no chunk.
std::vector<uint64_t> LargestShards(const JobSpec& spec);
// Element type of the gradient slot.
DType GradientSlotType(const JobSpec& spec);

}  // namespace tidepool::shm

// JobSpec: everything memserver must know about a training job: chunks, parameters, optimizer,
// ranks, memory wanted.
//
// Any thread; a value type. The trainer makes it. Encode (shm/spec/encode.h) turns it into bytes
// for the control socket. Those bytes come from a peer: Decode (shm/spec/decode.h) checks every
// number, and returns a description that keeps the invariants below, or an error that names the
// first broken one.
//
// Invariants (shm/spec/validate.h checks them all):
//  1. counts lie within the limits of shm/spec/spec_limits.h; the name is 1..63 characters of
//     [A-Za-z0-9._-];
//  2. every chunk belongs to a data-parallel group; chunk.elements is a positive multiple of
//     (group's ranks x 16), so that shards are equal and start on 64 bytes;
//  3. parameters are in chunk order and, within a chunk, in order of element_begin, do not overlap,
//     lie inside their chunk, start on 64 bytes (fp32 chunks: 16 elements, 16-bit: 32 elements) and
//     have element_count = product of dims;
//  4. floats are finite and in range;
//  5. total bytes do not overflow 62 bits;
//  6. frozen chunks (shm/spec/frozen.h) have a positive multiple of 16 elements;
//  7. states on GPUs (shm/spec/gpu_states.h) are fp32 ones of Adam or AdamW, of existing chunks;
//  8. a trained chunk has the job's dtype, except the first `f32_chunks` of a 16-bit job, which are
//     fp32; the last chunk has the job's dtype. Frozen chunks have any type, including raw bytes;
//  9. only a 16-bit job with one micro-batch per step sums gradients at its ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/formats/content_hash.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "base/formats/optimizer.h"
#include "shm/spec/spec_limits.h"
#include "shm/spec/spec_sums.h"

namespace tidepool::shm {

struct ParameterGroup {  // of the optimizer
  float lr_scale = 1;
  float weight_decay = 0;
};

// Ranks among which chunks of this group are sharded and their gradients reduced (Elixir v1,
// section IV)
struct DataGroup {
  uint64_t rank_mask = 0;  // bit r: rank r is a member
};

// A trained chunk.
struct ChunkSpec {
  uint64_t elements = 0;  // padded, over all shards
  uint32_t data_group = 0;
  friend bool operator==(const ChunkSpec&, const ChunkSpec&) = default;
};

// Bytes that the job reads and never writes, shared with all jobs of the user that list the same
// bytes. Ids of frozen chunks follow those of `chunks`.
struct FrozenChunkSpec {
  uint64_t elements = 0;
  DType dtype = DType::kF32;  // of one element; kRaw: bytes
  ContentHash content;        // of exactly those bytes
  friend bool operator==(const FrozenChunkSpec&, const FrozenChunkSpec&) = default;
};

// One parameter and its place.
struct ParameterSpec {
  std::string name;
  std::vector<uint64_t> dims;  // row-major shape, at most kDimsMax; empty for a scalar
  uint32_t chunk = 0;
  uint32_t group = 0;          // index into parameter_groups
  uint64_t element_begin = 0;  // in the chunk
  uint64_t element_count = 0;
};

struct JobSpec {
  std::string name;
  uint32_t world = 1;
  // Type of parameters in the rCache and of gradients on the wire; DTypeOf gives a chunk's.
  DType dtype = DType::kF32;
  OptimizerSpec optimizer;     // its form of states fits the job's dtype; see StatesOf
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
  // The first `states_on_gpu` of `chunks` have their fp32 states in memory of the ranks' GPUs.
  uint32_t states_on_gpu = 0;
  // The first `f32_chunks` of `chunks` are fp32 although the job's dtype has 16 bits (decision
  // 044).
  uint32_t f32_chunks = 0;
  // 1: a rank sums its micro-batches itself, in fp32, and submits the sum, as if the step had one
  // micro-batch; 0: gradients come in their chunk's dtype (decision 051).
  uint32_t sums_gradients = 0;
  KeptSums sums;  // made by Decode; none otherwise. A decoded description must not be changed.

  // True if `chunk` is a frozen one; and its entry.
  bool IsFrozen(ChunkId chunk) const {
    return chunk >= chunks.size() && chunk - chunks.size() < frozen.size();
  }
  const FrozenChunkSpec& Frozen(ChunkId chunk) const { return frozen[chunk - chunks.size()]; }
  // The element type of a chunk, trained or frozen. Of the trained ones the first has the widest.
  DType DTypeOf(ChunkId chunk) const {
    return chunk < f32_chunks ? DType::kF32 : IsFrozen(chunk) ? Frozen(chunk).dtype : dtype;
  }
  // The form of a trained chunk's states: an fp32 chunk has fp32 states, whatever the job's form.
  StateForm StatesOf(ChunkId chunk) const {
    return chunk < f32_chunks ? StateForm::kF32 : optimizer.states;
  }
  // The element type in which gradients of a trained chunk are submitted.
  DType GradientTypeOf(ChunkId chunk) const {
    return sums_gradients != 0 ? DType::kF32 : DTypeOf(chunk);
  }
  // True if all gradient slots are fp32, because they hold sums.
  bool HasF32Slots() const { return micro_batches > 1 || sums_gradients != 0; }
  // True if a chunk has another type than the job.
  bool HasOwnDTypes() const;
  // Number of shards of `chunk`, and which of them is `rank`'s (requires that rank is a member).
  uint32_t ShardCount(ChunkId chunk) const;
  uint32_t ShardIndex(ChunkId chunk, Rank rank) const;
  bool IsMember(ChunkId chunk, Rank rank) const;
  uint64_t ShardElements(ChunkId chunk) const;
  uint64_t TotalElements() const;   // with padding
  uint64_t ParameterCount() const;  // elements of parameters, without padding
};

// Element type of the gradient slot of a trained chunk.
DType GradientSlotType(const JobSpec& spec, ChunkId chunk);
// Element type of a gradient as it is submitted; `summed`: it is the sum of a whole step
// (messages.h).
inline DType SubmittedType(const JobSpec& spec, ChunkId chunk, bool summed) {
  return summed ? GradientSlotType(spec, chunk) : spec.GradientTypeOf(chunk);
}

}  // namespace tidepool::shm

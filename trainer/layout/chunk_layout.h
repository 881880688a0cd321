// ChunkLayout: the location of every parameter of a model: its chunk, its offset there, and how
// chunks are cut into shards.
//
// Any thread; a value, constant after BuildLayout (trainer/layout/build_layout.h).
// Invariants:
//  1. parameters are in chunk order and, within a chunk, in order of element_begin; they do not
//     overlap, start on 64 bytes, and a parameter never spans chunks;
//  2. all parameters of a chunk have its dtype. A trained chunk has the layout's, or fp32 in a
//     16-bit layout; a frozen one has any dtype, raw bytes included;
//  3. all chunks that are not resident have `block_bytes` bytes, for any data group and dtype
//     (Elixir v1, section IV-A: one unified chunk size), so that every rCache block can hold any of
//     them; those of units may have fewer, and are trimmed to their content;
//  4. chunk.elements is a multiple of (group's ranks x shard alignment): shards are equal and start
//     on 64 bytes (Elixir v1, section V);
//  5. trained chunks come before frozen ones; within each kind they are ordered by dtype, fp32
//     first (decision 044), and within one dtype resident chunks come first, trimmed to their
//     content.
// Units: elements of the chunk's dtype, unless a name says bytes. Ranks are the job's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "trainer/layout/chunk_size.h"

namespace tidepool::trainer {

// One parameter and its location.
struct ParameterPlace {
  std::string name;
  std::vector<uint64_t> dims;  // row-major shape; empty for a scalar
  uint32_t optimizer_group = 0;
  // Used more than once in a pass: its gradient is complete only at the end of backward.
  bool multi_use = false;
  ChunkId chunk = 0;
  uint64_t element_begin = 0;  // offset in the chunk
  uint64_t element_count = 0;  // product of dims
  uint32_t note = 0;           // index of its ParameterNote
};

// One chunk.
struct ChunkPlace {
  DType dtype = DType::kF32;   // of parameters, and of gradients on the wire
  uint64_t elements = 0;       // padded, over all shards
  uint64_t used_elements = 0;  // of parameters, without padding
  uint32_t data_group = 0;
  uint32_t unit = 0;      // of all its parameters (ParameterNote::unit); 0: used in every pass
  bool resident = false;  // has fixed space in the rCache and is never evicted
  // Gradients stay in a separate buffer until the end of backward (Elixir v2, appendix A.2).
  bool multi_use = false;
  bool frozen = false;  // read and never trained: no gradients, and a single version
  ParameterId first_parameter = 0;
  uint32_t parameter_count = 0;
};

struct ChunkLayout {
  DType dtype = DType::kF32;  // of the job: that of the last trained chunk
  uint32_t world = 1;
  // Members, ascending; a group's chunks are sharded over them.
  std::vector<std::vector<Rank>> data_groups;
  std::vector<ChunkPlace> chunks;          // by ChunkId
  std::vector<ParameterPlace> parameters;  // by ParameterId
  std::vector<ParameterId> of_note;        // index of a note -> ParameterId
  // Size of a chunk that is not resident; 0 if all are resident.
  uint64_t block_bytes = 0;
  ChunkSizeChoice choice;  // how block_bytes was found

  // The number of trained chunks, whose ids come before those of the frozen ones.
  uint32_t TrainedChunks() const;
  // Number of trained fp32 chunks in a 16-bit layout; they come first.
  uint32_t OwnF32Chunks() const;
  bool IsFrozen(ParameterId parameter) const { return chunks[parameters[parameter].chunk].frozen; }

  // Shards of the chunk: ranks of its data group.
  uint32_t ShardCount(ChunkId chunk) const;
  // The index of `rank`'s shard. Requires IsMember(chunk, rank).
  uint32_t ShardIndex(ChunkId chunk, Rank rank) const;
  bool IsMember(ChunkId chunk, Rank rank) const;
  uint64_t ShardElements(ChunkId chunk) const;
  uint64_t ShardBytes(ChunkId chunk) const;
  uint64_t ChunkBytes(ChunkId chunk) const;
  // Offset of a parameter in its chunk, in bytes.
  uint64_t ByteBegin(ParameterId parameter) const;

  // Device memory for one evictable chunk; 0 when all chunks are resident. A multiple of 4 KiB.
  uint64_t BlockBytes() const;
  // Device memory for the resident chunks of `rank`. A multiple of 4 KiB.
  uint64_t ResidentBytes(Rank rank) const;
  // Size of an rCache with `blocks` blocks beside rank's resident chunks: the --rcache for that
  // number of blocks.
  uint64_t RcacheBytes(Rank rank, uint64_t blocks) const;
  // The largest unit of a chunk; 0: there are none.
  uint32_t Units() const;
  // Number of chunks of `rank` that need a block when they are used.
  uint64_t EvictableChunks(Rank rank) const;
  // Number of blocks in such an rCache: at most the chunks that can use them. Requires rcache_bytes
  // >= ResidentBytes(rank).
  uint64_t BlocksIn(Rank rank, uint64_t rcache_bytes) const;
  // True if the two ranks' chunks match one by one, in order: each is either shared, or one of each
  // rank's own and of the same kind. The same uses then lead both to the same decisions and the
  // same collectives.
  bool AreAlike(Rank a, Rank b) const;

  // The parameter that covers an element of the chunk, or else the last one before it.
  ParameterId ParameterAt(ChunkId chunk, uint64_t element) const;
  uint64_t ParameterCount() const;         // elements of all parameters, without padding
  uint64_t TrainedParameterCount() const;  // elements of those that are not frozen
  uint64_t ParameterBytes() const;         // of all parameters, without padding
  uint64_t TotalBytes() const;             // with padding
};

// Shards start on 64 bytes: 16 elements of fp32, 32 of a 16-bit type, 64 raw bytes.
inline constexpr uint64_t ShardAlignElements(DType dtype) {
  return 64 / BytesOf(dtype);
}

}  // namespace tidepool::trainer

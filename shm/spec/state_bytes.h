// StateBytes: the host-pool bytes of a job's states while all of them lie there: one sum, term by
// term, used by admission and by `trainer estimate`.
//
// Pure functions, any thread. The pool allocates whole pages, so each plane of each chunk, each
// rank's staging buffer and the records are rounded up to 4 KiB:
//   plane of a chunk   PooledBytes(bytes of the plane): RoundUp(bytes, 4 KiB), and the slack of a
//                      large one, by which the planes of a chunk are kept apart
//                      (base/formats/plane_slack.h); base/formats/optimizer.h says how many bytes,
//                      and which planes a rule has
//   staging of a rank  RoundUp(StagingBytes of its largest shard, 4 KiB), 0 if it is a member of no
//                      chunk
//   records            RoundUp(kJobRecordBytes + chunks x kChunkRecordBytes
//                              + ranks x kStagingRecordBytes + pieces x kProgressBytes
//                              + shards x kShardRecordBytes
//                              + (parameters + extents + frozen chunks) x 8
//                              + encoded specification, to whole words, and two step slots behind
//                              it (StepSlotBytes), 4 KiB)
// Frozen chunks may be shared with other jobs: FrozenPoolBytes (shm/spec/frozen.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "shm/spec/job_spec.h"

namespace tidepool::shm {

// From the sums of `spec` if it has some.
StateBytes StateBytesOf(const JobSpec& spec);
// Bytes of the planes of one chunk, in their order in the pool; 0 for a plane that the job does not
// have.
struct PlaneBytes {
  uint64_t master = 0, momentum = 0, variance = 0, param16 = 0, gradient = 0;
};
PlaneBytes PlaneBytesOf(const JobSpec& spec, ChunkId chunk);
// Bytes of the staging buffer of a rank whose largest shard has this many elements, not rounded, as
// if they were of the widest type; 0: it has none.
uint64_t StagingBytes(const JobSpec& spec, uint64_t shard_elements);
// Number of pool extents of a job: its records, the staging buffers, and the planes of each chunk.
uint64_t ExtentCount(const JobSpec& spec);
// Elements of the largest shard of each rank, by rank; 0: it is a member of no chunk.
std::vector<uint64_t> LargestShards(const JobSpec& spec);
// Number of chunks of which each rank has a shard, by rank.
std::vector<uint32_t> ChunksOfRanks(const JobSpec& spec);
// Pieces and shards of all chunks: rows of the job's tables.
struct TableCounts {
  uint64_t pieces = 0, shards = 0;
};
TableCounts TableCountsOf(const JobSpec& spec);

}  // namespace tidepool::shm

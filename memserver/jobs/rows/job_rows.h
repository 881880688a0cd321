// JobRowOf, ChunkRowOf: the rows of a snapshot for one job, and for one of its chunks.
//
// The serve loop's thread. JobRowOf does not iterate over the job's chunks: sums over them are kept
// as they change.
#pragma once

#include <cstdint>
#include <vector>

#include "memserver/jobs/job.h"
#include "memserver/residency/snapshot.h"

namespace tidepool::memserver {

// Chunks of the job, frozen ones included.
uint64_t ChunksIn(const Job& job);
// The row of a chunk of either kind, without what ranks have asked for.
ChunkRow ChunkRowOf(const Job& job, ChunkId id);
// `chunks`: the rows of all of its chunks, by id; what ranks have asked for is noted there.
JobRow JobRowOf(const Job& job, bool demoting, std::vector<ChunkRow> chunks);
// Bytes of a rank's share of states on `gpu` (null: on any). Memory that only the keeper still
// holds counts.
uint64_t StateBytesOnGpu(const Job& job, Rank rank, const GpuStreams* gpu);

}  // namespace tidepool::memserver

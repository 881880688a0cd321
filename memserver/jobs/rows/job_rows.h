// JobRowOf, ChunkRowOf: the rows of a snapshot for one job, and for one of its chunks.
//
// The serve loop's thread. JobRowOf does not iterate over the job's chunks: it reads sums that are
// kept up to date.
#pragma once

#include <cstdint>
#include <vector>

#include "memserver/jobs/job.h"
#include "memserver/residency/snapshot.h"

namespace tidepool::memserver {

// Chunks of the job, frozen ones included.
uint64_t ChunksIn(const Job& job);
// The row of a chunk of either kind, without the ranks' outstanding requests.
ChunkRow ChunkRowOf(const Job& job, ChunkId id);
// `chunks`: the rows of all of its chunks, by id; the ranks' outstanding requests are marked there.
JobRow JobRowOf(const Job& job, bool demoting, std::vector<ChunkRow> chunks);
// Bytes of a rank's share of states on `gpu` (null: on any), including memory that only the keeper
// still holds.
uint64_t StateBytesOnGpu(const Job& job, Rank rank, const GpuStreams* gpu);

}  // namespace tidepool::memserver

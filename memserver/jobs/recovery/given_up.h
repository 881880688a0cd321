// GivenUp: what becomes of the memory of kept jobs that are given up, while servers that were
// killed may still copy into it (decision 048).
//
// The thread that makes the serve loop, before it runs; GiveWithheld: the loop's, at any turn.
// Addresses that a damaged job names are not trusted, so all free memory is withheld until those
// servers have ended.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "memserver/jobs/tables.h"
#include "memserver/residency/kept/job_records.h"
#include "memserver/residency/kept/kept_index.h"

namespace tidepool::memserver {

// What servers before this one may still do to kept jobs.
struct FormerCopies {
  uint32_t living = 0;   // servers whose processes have not ended
  uint32_t copying = 0;  // those of them that had copies on a GPU's streams
};

// Bits of the servers that had copies of kept jobs on a GPU's streams; all if a job's records are
// absent. Bits of servers that the index does not note have no meaning.
uint32_t GpuServersOf(const HostPool& pool, const IndexedJob& job);
uint32_t GpuServersOf(const HostPool& pool, const IndexContents& contents);
// The status for `who`, which has to wait for these servers: kNotReady, with their pids.
Status WhyItWaits(const IndexContents& contents, uint32_t servers, const std::string& who);

// A job that cannot be trusted, or whose states are lost.
struct GivenUp {
  const IndexedJob* indexed = nullptr;
  const KeptJob* kept = nullptr;  // null where its records cannot be read
  Status why;
};
// Gives the job up, and tells its ranks. It stays indexed while a former server may copy for it.
void GiveUp(const LoopNeighbours& neighbours, const GivenUp& job, const FormerCopies& former,
            Tables* tables);
// After all jobs were read: withholds free memory while that of a given-up job may be written.
void WithholdMemory(const LoopNeighbours& neighbours, const IndexContents& contents,
                    Tables* tables);
// Notes that these former servers have ended: memory that was withheld for them alone is free.
void GiveWithheld(const LoopNeighbours& neighbours, uint32_t ended, Tables* tables);

}  // namespace tidepool::memserver

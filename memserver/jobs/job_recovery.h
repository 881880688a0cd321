// RecoverJobs: makes the jobs that another server has left in kept memory into jobs of this one.
//
// The thread that makes the serve loop, before it runs and before any worker works. Sealed steps go
// on where they stopped, without any trainer; the ranks of the last run are awaited. A job that
// cannot be trusted is given up, with a line in the log that says why: the ranks that come back for
// it are told kStatesLost. A server that was not given the NVMe directories of a job does not start
// instead (kNvmeDirectoryMissing): the job stays as it is for one that was. Where one that was
// given is gone, its jobs are set aside. So are jobs into whose memory a former server may still
// copy (decision 039): those are whole, but for what such a copy writes, and are taken up when it
// has ended. May be interrupted at any instruction and repeated by the next server.
#pragma once

#include <cstdint>
#include <span>

#include "memserver/keeper/keeper_messages.h"
#include "memserver/residency/kept/kept_index.h"
#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

// `states`: memory of GPUs that the keeper holds. A job whose share is not among it is given up as
// well; those of others are mapped by the preparation thread, and what is no job's is let go of.
// `living`: bits of former servers whose processes have not ended.
Status RecoverJobs(const LoopNeighbours& neighbours, const IndexContents& contents,
                   std::span<const HeldMemory> states, uint32_t living, Tables* tables);
// The loop's thread, in any turn: moves a job that was set aside whole into the table. Its quota is
// the caller's to set.
Job* TakeUp(const LoopNeighbours& neighbours, SetAside aside, Tables* tables);
// The last server died while it took this job down, or all ranks had said goodbye, or nobody is
// left of a job without weights.
bool IsOver(const Job& job);

}  // namespace tidepool::memserver

// RecoverJobs: turns the jobs that another server left in kept memory into jobs of this one.
//
// The thread that makes the serve loop, before it runs and before any worker works. Sealed steps
// continue where they stopped, without any trainer; the ranks of the last run are awaited. A job
// that cannot be trusted is given up, with a log line that says why; ranks that come back for it
// are told kStatesLost. A server that was not given the NVMe directories of a job does not start
// (kNvmeDirectoryMissing): the job stays as it is for one that was. If a given directory is gone,
// its jobs are set aside. So are jobs into whose memory a former server may still copy (decision
// 039): they are whole except for what such a copy writes, and are taken up when that server has
// ended. May be interrupted at any instruction and repeated by the next server.
#pragma once

#include <cstdint>
#include <span>

#include "memserver/keeper/keeper_messages.h"
#include "memserver/residency/kept/kept_index.h"
#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

// `states`: GPU memory that the keeper holds. A job whose share is not among it is given up as
// well; shares of others are mapped by the preparation thread; memory without a job is released.
// `living`: bits of former servers whose processes have not ended.
Status RecoverJobs(const LoopNeighbours& neighbours, const IndexContents& contents,
                   std::span<const HeldMemory> states, uint32_t living, Tables* tables);
// The loop's thread, in any turn: moves a job that was set aside whole into the table. The caller
// sets its quota.
Job* TakeUp(const LoopNeighbours& neighbours, SetAside aside, Tables* tables);
// True if the last server died while it took this job down, if all ranks had said goodbye, or if a
// job without weights has no ranks left.
bool IsOver(const Job& job);

}  // namespace tidepool::memserver

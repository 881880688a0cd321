// The part of JobDesk about states that a drive did not take: they stay on the host, and the job
// goes on.
#include <cstring>

#include "base/log.h"
#include "memserver/jobs/job_desk.h"
#include "memserver/jobs/snapshot_builder.h"

namespace tidepool::memserver {

// What the job's account may have, and what is in one run.
bool JobDesk::KeepInPool(Job* job, const SpillQueue::Unwritten& piece) {
  const uint64_t bytes = job->states->stand_ins().BytesFor(piece.chunk, piece.piece);
  return RoomFor(BuildLedger(parts_, options_, *tables_), job->account).bytes >= bytes &&
         job->spills.KeepInPool(piece);
}

bool JobDesk::SettleUnwritten(Job* job) {
  if (!job->states->spills()) return false;
  bool settled = false;
  SpillQueue::Unwritten piece;
  while (job->phase == JobPhase::kOpen && job->spills.NextUnwritten(&piece)) {
    settled = true;
    ++tables_->counters.states_unwritten;
    const bool kept = KeepInPool(job, piece);
    if (!kept && piece.out) {
      job->spills.FailUnwritten(piece);
      break;
    }
    if (!kept) job->spills.PutOff(piece, parts_.clock->NowNs() + kPutOffNs);
    if (!kept && piece.times > 0) continue;  // it was told
    LogError(
        kept ? "a drive does not take states: they stay in the pool, and the job goes on"
             : "a drive does not take states, and the pool has no room for them: the job waits, "
               "its ranks as long as they wait for an answer",
        {{"job", job->id},
         {"name", job->spec().name},
         {"chunk", piece.chunk},
         {"piece", piece.piece},
         {"directory", parts_.tier->directory(piece.directory).path},
         {"offset", piece.offset},
         {"error", std::strerror(piece.error)},
         {"bytes", job->states->stand_ins().BytesFor(piece.chunk, piece.piece)},
         {"fix",
          kept ? "look at the kernel log for this drive; the next job may use another directory"
               : "look at the kernel log for this drive; give the pool room: `memctl quotas` says "
                 "who holds it; "
                 "ranks that have ended meanwhile go on with --resume auto"}});
  }
  return settled;
}

}  // namespace tidepool::memserver

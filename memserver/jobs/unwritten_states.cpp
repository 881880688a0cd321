#include "memserver/jobs/unwritten_states.h"

#include <cstring>

#include "base/hot.h"
#include "base/log.h"
#include "memserver/jobs/admission/build_ledger.h"

namespace tidepool::memserver {
namespace {

// Succeeds if the job's account may have that much more, and the pool has a large enough run.
bool KeepInPool(const DeskContext& context, Job* job, const SpillQueue::Unwritten& piece) {
  const uint64_t bytes = job->states->fallback_slots().BytesFor(piece.chunk, piece.piece);
  const Ledger ledger =
      BuildLedger(context.neighbours, context.options, *context.tables, context.settings);
  return RoomFor(ledger, job->account).bytes >= bytes && job->spills.KeepInPool(piece);
}

void TellUnwritten(const StateTier& tier, const Job& job, const SpillQueue::Unwritten& piece,
                   bool kept) {
  const char* what =
      kept ? "a drive does not take states: they stay in the pool, and the job goes on"
           : "a drive does not take states, and the pool has no room for them: the job waits, "
             "its ranks as long as they wait for an answer";
  const char* fix =
      kept ? "look at the kernel log for this drive; the next job may use another directory"
           : "look at the kernel log for this drive; give the pool room: `memctl quotas` says "
             "who holds it; "
             "ranks that have ended meanwhile go on with --resume auto";

  LogError(what, {{"job", job.id},
                  {"name", job.spec().name},
                  {"chunk", piece.chunk},
                  {"piece", piece.piece},
                  {"directory", tier.directory(piece.directory).path},
                  {"offset", piece.offset},
                  {"error", std::strerror(piece.error)},
                  {"bytes", job.states->fallback_slots().BytesFor(piece.chunk, piece.piece)},
                  {"fix", fix}});
}

}  // namespace

TP_HOT bool SettleUnwritten(const DeskContext& context, Job* job) {
  if (!job->states->spills()) return false;
  bool settled = false;
  SpillQueue::Unwritten piece;
  while (job->phase == JobPhase::kOpen && job->spills.NextUnwritten(&piece)) {
    settled = true;
    ++context.tables->counters.states_unwritten;
    const bool kept = KeepInPool(context, job, piece);
    if (!kept && piece.out) {
      job->spills.FailUnwritten(piece);
      break;
    }

    if (!kept) job->spills.PutOff(piece, context.neighbours.clock->NowNs() + kPutOffNs);
    if (!kept && piece.times > 0) continue;  // reported before
    TellUnwritten(*context.neighbours.tier, *job, piece, kept);
  }
  return settled;
}

}  // namespace tidepool::memserver

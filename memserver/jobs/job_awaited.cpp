// JobDesk: waits for ranks that a former server had.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/job_desk.h"
#include "memserver/jobs/job_lease.h"
#include "memserver/jobs/job_recovery.h"

namespace tidepool::memserver {

void JobDesk::On(AwaitedRankLost event) {
  if (TP_PLANTED("jobs.awaited_loss_ignored")) return;
  Job* job = tables_->FindJob(event.job);
  if (job == nullptr || event.rank >= job->seats.size() || !job->IsAwaited(event.rank) ||
      job->NonceOf(event.rank) != event.nonce)
    return;
  LoseAwaited(job, event.rank, "its process has ended");
}

void JobDesk::LoseAwaited(Job* job, Rank rank, const char* cause) {
  LogWarn("awaited rank lost", {{"job", job->id}, {"rank", rank}, {"cause", cause}});
  ++tables_->counters.sessions_ended_badly;
  LeaveJob(job, rank, Leaving::kLost);
}

// Awaits a rank again for which this server lacked something as it came back: it tries again, and
// nothing of its run has changed. False where the rank is a new one, or had come back.
bool JobDesk::AwaitAgain(Seat* seat) {
  Job* job = seat->job;
  const Rank rank = seat->rank;
  const bool came_back =
      seat->session == nullptr && job->IsRecorded() && job->NonceOf(rank) == seat->nonce;
  const bool ending = tables_->draining && !tables_->handing_over;
  if (!came_back || ending || TP_PLANTED("jobs.unserved_is_lost")) return false;
  CloseSession(seat, ErrorId::kSessionEnded);
  job->seats[rank] = nullptr;
  std::erase_if(tables_->seats, [seat](const auto& other) { return other.get() == seat; });
  job->awaiting_since_ns = parts_.clock->NowNs();
  const RankRecord& record = job->states->record().ranks[rank];
  Send(AwaitRank{job->id, rank, job->NonceOf(rank), record.pid, record.process_start});
  return true;
}

// Takes up the jobs that waited for these servers; their ranks were told to try again.
void JobDesk::On(FormerServersEnded event) {
  parts_.index->ForgetServers(event.servers);
  TP_POINT("server.former_forgotten");
  for (size_t i = 0; i < tables_->set_aside.size();) {
    SetAside& aside = tables_->set_aside[i];
    const bool waited = aside.waits_for != 0;
    aside.waits_for &= ~event.servers;
    if (!waited || aside.waits_for != 0 || tables_->draining) {
      ++i;
      continue;
    }
    Job* job = TakeUp(parts_, std::move(aside), tables_);
    tables_->set_aside.erase(tables_->set_aside.begin() + static_cast<ptrdiff_t>(i));
    tables_->room_changes.Note(RoomChange::kJobTakenUp);
    if (IsOver(*job)) BeginRemoval(job);
    TP_POINT("server.job_taken_up");
  }
  ApplyQuotas();
}

// Says no while a frozen chunk is not sealed and belongs to a job that was set aside: a former
// server may still copy into it.
Status JobDesk::WhyNotToShare(const FrozenHold& frozen) const {
  for (const SetAside& job : tables_->set_aside) {
    if (job.waits_for == 0) continue;
    for (const FrozenUse& use : job.states().frozen()) {
      const auto& chunks = frozen.chunks();
      if (!use.chunk->sealed && std::find(chunks.begin(), chunks.end(), use.chunk) != chunks.end())
        return job.why;
    }
  }
  return Status();
}

// Gives up ranks of the server before this one that neither come back nor are seen to have ended
// (no process identity is known across a container).
bool JobDesk::TendAwaited(Job* job) {
  const bool complete = std::none_of(job->seats.begin(), job->seats.end(),
                                     [](const Seat* seat) { return seat == nullptr; });
  if (job->phase != JobPhase::kOpen || complete) return false;  // as in nearly all turns
  if (parts_.clock->NowNs() - job->awaiting_since_ns < AwaitNs(options_)) return false;
  bool lost = false;
  for (Rank rank = 0; rank < job->seats.size() && job->phase == JobPhase::kOpen; ++rank) {
    if (!job->IsAwaited(rank)) continue;
    LoseAwaited(job, rank, "it did not come back in time");
    lost = true;
  }
  return lost;
}

}  // namespace tidepool::memserver

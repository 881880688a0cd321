// Meeting: how the ranks of a run find each other and make groups: over Unix sockets if all run on
// one machine (local_meeting.h), else over TCP through Gloo (rendezvous_store.h).
//
// One thread (the trainer's main thread).
#pragma once

#include <memory>

#include "base/status.h"
#include "trainer/comm/collective.h"
#include "trainer/comm/group_spec.h"
#include "trainer/comm/rank_link.h"
#include "trainer/comm/meeting/local_meeting.h"
#include "trainer/comm/meeting/rendezvous.h"
#include "trainer/comm/meeting/rendezvous_store.h"

namespace tidepool::trainer {

class Meeting {
 public:
  // Errors: those of RendezvousStore::Open.
  static Result<std::unique_ptr<Meeting>> Open(const Rendezvous& meet);

  // Blocks until every rank of the run has called it. May be repeated after Disband, once all
  // surviving ranks have disbanded.
  // Errors: kRanksMissing, kJobMismatch, kCollectiveFailed, and what meet.interrupted returned.
  Status Gather() { return local_ ? local_->Gather() : store_->Gather(); }
  // Leaves the meeting. Must come before anything that lets new ranks gather.
  void Disband() { local_ ? local_->Disband() : store_->Disband(); }
  // Blocks until all members have called it with the same spec.
  Result<std::unique_ptr<Collective>> MakeGroup(const GroupSpec& spec) {
    return local_ ? local_->MakeGroup(spec) : store_->MakeGroup(spec);
  }
  // Blocks until both ends have called it with the same spec. Errors: kUsageError (the ranks are on
  // several machines), those of LocalMeeting::MakeLink.
  Result<std::unique_ptr<RankLink>> MakeLink(const LinkSpec& spec) {
    if (local_) return local_->MakeLink(spec);
    return Status(ErrorId::kUsageError, "ranks on several machines have no links yet")
        .Fix("start all ranks of a pipeline on one machine");
  }

 private:
  Meeting() = default;

  std::unique_ptr<LocalMeeting> local_;  // or:
  std::unique_ptr<RendezvousStore> store_;
};

}  // namespace tidepool::trainer

// RendezvousStore: where the ranks of several machines find each other and make groups that talk
// over TCP through Gloo. The ports do not authenticate users: see docs/security.md. Ranks of one
// machine use local_meeting.h instead.
//
// One thread (the trainer's main thread). Groups do not need the store to outlive them: each holds
// what it uses of it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "trainer/comm/collective.h"
#include "trainer/comm/group_spec.h"
#include "trainer/comm/meeting/rendezvous.h"

namespace tidepool::trainer {

// The key-value server at MASTER_ADDR:MASTER_PORT where the members of a group find each other.
class RendezvousStore {
 public:
  // Connects; the serving rank opens the port first. A run of one rank touches no network.
  // Errors: kCollectiveFailed (port taken), kRanksMissing (rank 0 not reached in time), and what
  // `interrupted` returned.
  static Result<std::unique_ptr<RendezvousStore>> Open(const Rendezvous& meet);
  ~RendezvousStore();

  // Blocks until every rank of the run has called it; groups made afterwards belong to this meeting
  // alone. After Disband it may be repeated with the same store, by surviving and restarted ranks.
  // Requires that no rank gathers before all survivors have disbanded (the memory server ensures
  // it: it admits no rank before those of the previous run have left). Errors: kCollectiveFailed
  // (the store is gone), kRanksMissing (names the ranks that did not come in time), kJobMismatch (a
  // rank has another specification), and what `interrupted` returned.
  Status Gather();
  // Leaves the meeting; its groups cannot be used any more. Must come before anything that lets new
  // ranks gather. Rank 0 keeps the count of meetings, in its own store or in that of torchrun's
  // agent.
  void Disband();

  // Blocks until all members have called it with the same spec. A group of one is a SoloCollective.
  // Errors: kCollectiveFailed (a member did not come before the time-out).
  Result<std::unique_ptr<Collective>> MakeGroup(const GroupSpec& spec);

  // The port in use (the chosen one if the rendezvous said 0); 0 for a run of one rank.
  uint16_t port() const;

 private:
  struct State;
  explicit RendezvousStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tidepool::trainer

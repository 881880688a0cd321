// RendezvousStore and GlooCollective: groups of ranks on several machines that talk over TCP
// through Gloo, the CPU back end of torch's c10d. The ports know no user: see docs/security.md.
// Ranks of one machine meet elsewhere (local_meeting.h).
//
// One thread (the trainer's main thread) calls all methods; Gloo's own threads move the bytes, and
// one of the group (operation_thread.h) begins operations and forms sums. The store must outlive
// nothing: each group holds what it needs of it.
// Memory: a reduce-scatter needs a buffer as large as its block; a group has kPartsAtOnce of them
// at most (operation_thread.h).
// Arithmetic: a reduce-scatter moves each addend once (all-to-all) and adds in rank order in fp32
// (trainer/comm/rank_sum.h), because Gloo's own form is an all-reduce into a copy of the block. An
// all-gather is one broadcast per rank straight into the block, without Gloo's copies.
#pragma once

#include <memory>
#include <string>
#include <vector>

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

  // Blocks until every rank of the run has called it; the groups made next belong to this meeting
  // alone. May be repeated with the same store after Disband, by ranks that stayed and ranks that
  // were started again. Requires that no rank gathers before all that stayed have disbanded (the
  // memory server sees to it: it seats no rank before those of the run before have left).
  // Errors: kCollectiveFailed (the store is gone), kRanksMissing (names those that did not come in
  // time), kJobMismatch (a rank has another specification), and what `interrupted` returned.
  Status Gather();
  // This rank leaves the meeting, whose groups cannot be used any more. Must come before anything
  // that lets new ranks gather. Rank 0 keeps the count of meetings: in its own store, or in that of
  // torchrun's agent.
  void Disband();

  // Blocks until all members have called it with the same spec. A group of one is a SoloCollective.
  // Errors: kCollectiveFailed (a member did not come before the time-out).
  Result<std::unique_ptr<Collective>> MakeGroup(const GroupSpec& spec);

  // The port in use (the chosen one when the rendezvous said 0); 0 for a run of one rank.
  uint16_t port() const;

 private:
  struct State;
  explicit RendezvousStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class GlooCollective final : public Collective {
 public:
  struct State;
  explicit GlooCollective(std::unique_ptr<State> state);  // use RendezvousStore::MakeGroup
  // Waits for operations in flight; they fail by themselves when a peer is gone or at the time-out.
  ~GlooCollective() override;

  uint32_t rank() const override;
  uint32_t world() const override;
  Ticket StartAllGather(const BlockView& block) override;
  Ticket StartReduceScatter(const BlockView& block) override;
  bool Test(Ticket ticket) override;
  Status Wait(Ticket ticket) override;
  Status Barrier() override;
  // The sum is formed in rank order on every rank: all ranks see the same bits.
  Status SumDoubles(double* values, uint64_t count) override;
  Status Broadcast(void* bytes, uint64_t size) override;

  // Bytes of the buffers for parts that this group has taken so far.
  uint64_t part_bytes() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace tidepool::trainer

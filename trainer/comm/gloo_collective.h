// GlooCollective: a group of ranks on several machines that talk over TCP through Gloo, c10d's
// backend for CPUs.
//
// One thread (the trainer's main thread) calls all methods; Gloo's threads move the bytes, and the
// group's own thread (operation_thread.h) begins operations and forms sums.
// Memory: a reduce-scatter needs a buffer as large as its block; a group has at most kPartsAtOnce
// of them (operation_thread.h).
// Before an operation's bytes move, the ranks gather a short description of it (operation_check.h).
// Arithmetic: a reduce-scatter moves each addend once (all-to-all) and adds in rank order in fp32
// (trainer/comm/rank_sum.h), because Gloo's implementation is an all-reduce into a copy of the
// block. An all-gather is one broadcast per rank directly into the block, without Gloo's copies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "trainer/comm/collective.h"
#include "trainer/comm/meeting/rendezvous.h"

namespace c10d {
class Store;
}

namespace tidepool::trainer {

struct GlooPlace {    // this rank's place in the group
  std::string group;  // its name, for messages
  uint32_t rank = 0, world = 1;
  int64_t timeout_ms = 0;       // of an operation
  int64_t mesh_timeout_ms = 0;  // of the connections between the members
};

class GlooCollective final : public Collective {
 public:
  // Blocks until all members have called it with the same place except for the rank, and the same
  // store; RendezvousStore::MakeGroup calls it. The group holds what it needs of the store. Errors:
  // kCollectiveFailed (a member did not come before the time-out).
  static Result<std::unique_ptr<Collective>> Connect(const Rendezvous& meet, const GlooPlace& place,
                                                     c10d::Store* store);
  // Waits for operations in flight; they fail on their own at a lost peer or the time-out.
  ~GlooCollective() override;

  uint32_t rank() const override;
  uint32_t world() const override;
  Ticket StartAllGather(const BlockView& block) override;
  Ticket StartReduceScatter(const BlockView& block) override;
  Ticket StartAllToAll(const PartsView& parts) override;
  bool Test(Ticket ticket) override;
  Status Wait(Ticket ticket) override;
  Status Barrier() override;
  // Adds in rank order on every rank: all ranks see the same bits.
  Status SumDoubles(double* values, uint64_t count) override;
  Status Broadcast(void* bytes, uint64_t size) override;

  // Bytes of the part buffers that this group has allocated so far.
  uint64_t part_bytes() const;

 private:
  struct State;
  explicit GlooCollective(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace tidepool::trainer

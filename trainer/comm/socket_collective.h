// SocketCollective: a group of ranks on one machine that exchange over Unix sockets: host
// collectives without a port.
//
// One thread (the trainer's main thread) calls all methods; the group's thread moves the bytes and
// forms the sums (exchange_thread.h), so operations proceed while the caller computes.
// LocalMeeting::MakeGroup makes it. Memory: an operation needs none beside the caller's block. A
// reduce-scatter receives each rank's addends over those that were sent to that rank.
// Arithmetic: a reduce-scatter moves each addend once and adds in rank order in fp32 (rank_sum.h):
// the bits equal those of GlooCollective.
// An operation never hangs on a peer that has died, and can always be given up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "trainer/comm/collective.h"
#include "trainer/comm/exchange_thread.h"

namespace tidepool::trainer {

// The group, with its sockets connected.
struct SocketGroup {
  std::string name;  // for messages
  uint32_t rank = 0;
  // By rank of the group: a non-blocking stream socket; invalid for this rank.
  std::vector<UniqueFd> members;
  const Clock* clock = nullptr;      // outlives the collective
  int64_t timeout_ms = 0;            // without a byte moved, while an operation is in flight
  std::function<Status()> doomed{};  // as Rendezvous::doomed; its error becomes the operation's
};

class SocketCollective final : public Collective {
 public:
  explicit SocketCollective(SocketGroup group);
  // Gives up operations in flight.
  ~SocketCollective() override = default;

  uint32_t rank() const override { return rank_; }
  uint32_t world() const override { return world_; }
  Ticket StartAllGather(const BlockView& block) override;
  Ticket StartReduceScatter(const BlockView& block) override;
  Ticket StartAllToAll(const PartsView& parts) override;
  bool Test(Ticket ticket) override;
  Status Wait(Ticket ticket) override;
  void GiveUp(const Status& why) override { thread_.GiveUp(why); }
  Status Barrier() override;
  // Adds in rank order on every rank: all ranks see the same bits.
  Status SumDoubles(double* values, uint64_t count) override;
  Status Broadcast(void* bytes, uint64_t size) override;

 private:
  SocketExchange NewExchange(OperationKind kind, const OperationName& name = {}) const;
  Ticket StartOperation(SocketExchange exchange);

  const uint32_t rank_, world_;
  const std::function<Status()> doomed_;
  std::set<Ticket> in_flight_;
  ExchangeThread thread_;
};

}  // namespace tidepool::trainer

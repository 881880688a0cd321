// NcclCollective: a group of ranks with one GPU each, through NCCL: in place on the blocks, in
// stream order.
//
// One thread (the trainer's main thread). NCCL does not allow ranks that share one GPU in one
// group: they use StagedCollective.
// Order: an operation is enqueued when its Start has returned, so it follows the work enqueued
// before and precedes the work enqueued after, which sees its result. All groups of a process whose
// operations may be in flight together should share one stream: otherwise kernels of two groups
// that wait for peers in different orders could deadlock.
// Start blocks where NCCL has to set up connections first (an operation's first time), which needs
// the same call on all peers; otherwise it returns after launching kernels.
// A failed group stays failed: results are garbage, and every Test and Wait reports it. A group
// fails when NCCL sees an error, when `doomed` says that the run is lost (called four times a
// second in Test and while waiting for NCCL), at the time-out of a set-up, with another group of
// its set, and by GiveUp. Nothing checks while the CPU waits for a stream by other means: call Test
// in between (ParameterCache::AwaitOperators does). The kernels of a failed group keep waiting for
// their peers until GiveUp, or the destructor, aborts the communicators of all groups of the set,
// which also ends the waits behind them in the streams.
// CompareOrder tells ranks that their orders of operations differ; the operations that differ may
// hang in the stream until GiveUp. Sizes of an all-to-all differ between ranks and are not
// compared: mismatched sizes hang likewise.
// Arithmetic: NCCL sums in its own order, which is fixed for a group on given machines; the bits
// are not those of Gloo's group. Barrier, SumDoubles and Broadcast go through the host group of the
// same ranks, which also distributes NCCL's id.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "trainer/comm/collective.h"
#include "trainer/comm/nccl/communicator_set.h"
#include "trainer/comm/nccl/nccl_table.h"
#include "trainer/comm/operation_order.h"
#include "trainer/comm/meeting/rendezvous.h"

namespace tidepool::trainer {

struct NcclSetup {   // pointers must outlive the collective
  std::string name;  // of the group, for messages
  const NcclTable* nccl = nullptr;
  std::unique_ptr<Collective> host;  // of the same ranks (RendezvousStore::MakeGroup)
  device::Stream* stream = nullptr;
  void* native_stream = nullptr;  // the cudaStream_t of `stream`
  Clock* clock = nullptr;
  int64_t timeout_ms = kCollectiveTimeoutMs;  // for one set-up of connections
  std::function<Status()> doomed{};           // Rendezvous::doomed
  CommunicatorSet* together = nullptr;        // holds all groups of this process
};

class NcclCollective final : public Collective {
 public:
  // Blocks until all members have called it. Uses the stream's GPU. Errors: kCollectiveFailed (with
  // NCCL's text).
  static Result<std::unique_ptr<NcclCollective>> Open(NcclSetup setup);
  // Ends a healthy group together with its peers (at most five seconds); aborts any other.
  ~NcclCollective() override;

  uint32_t rank() const override { return setup_.host->rank(); }
  uint32_t world() const override { return setup_.host->world(); }
  Ticket StartAllGather(const BlockView& block) override;
  Ticket StartReduceScatter(const BlockView& block) override;
  Ticket StartAllToAll(const PartsView& parts) override;
  device::Stream* stream() override { return setup_.stream; }
  // True when the operation has ended, or the group has failed.
  bool Test(Ticket ticket) override;
  // Reports whether the group is healthy; does not wait for the stream.
  Status Wait(Ticket ticket) override;
  // Compares the order of started operations through the host group.
  Status CompareOrder() override;
  Status Barrier() override { return setup_.host->Barrier(); }
  Status SumDoubles(double* values, uint64_t count) override {
    return setup_.host->SumDoubles(values, count);
  }
  Status Broadcast(void* bytes, uint64_t size) override {
    return setup_.host->Broadcast(bytes, size);
  }

  // Aborts the communicators of the whole set.
  void GiveUp(const Status& why) override;

 private:
  explicit NcclCollective(NcclSetup setup) : setup_(std::move(setup)) {}

  Status Connect();
  // Finalizes and destroys the communicator together with its peers; false where that fails.
  bool EndsInOrder();
  // Handles `result` of the NCCL call `name`; waits until NCCL has finished it.
  void Settle(const char* name, int result);
  void Fail(const char* name, int result);
  // False: this group has failed, or was aborted with another one.
  bool Usable();
  // Checks for asynchronous errors.
  void Look();
  void AskDoomed();
  Ticket Keep(const char* name, int result);
  // Enqueues all sends and receives of an all-to-all as one operation. Returns the first result
  // that is neither success nor "in progress".
  int ExchangeParts(const PartsView& parts);
  void FailWith(const Status& why);
  std::string Doing(const char* name) const;

  const NcclSetup setup_;
  void* comm_ = nullptr;  // usable only while the set has it
  Status failure_;
  int64_t asked_ns_ = 0;  // last call of `doomed`
  Ticket last_ = 0;
  OperationOrder order_;
  std::map<Ticket, device::Stream::Marker> in_flight_;
};

}  // namespace tidepool::trainer

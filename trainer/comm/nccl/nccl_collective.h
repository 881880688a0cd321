// NcclCollective: a group of ranks with a GPU each, by NCCL: in place on the blocks, in the order
// of a stream.
//
// One thread (the trainer's main thread). Ranks that share one GPU cannot be in one NCCL group:
// they take StagedCollective.
// Order: an operation is in the stream when its Start has returned, so what is put into the stream
// before it comes before it, and what is put in behind it sees its result. All groups of a process
// whose operations may be in flight together should share one stream: kernels of two groups that
// wait for peers in different orders could otherwise hold each other up.
// Start waits for NCCL where NCCL has to set up connections first (an operation's first time),
// which needs the peers' same call; all else returns at once, after kernels were launched.
// A group that has failed stays so: results are garbage, and every Test and Wait says so. It fails
// by itself when NCCL sees an error, when `doomed` says that the run is lost (asked four times a
// second in Test and where NCCL is waited for), at the time-out of a set-up, with another group of
// its set, and by GiveUp. Nobody looks while the CPU waits for a stream by other means: call Test
// in between (ParameterCache::AwaitOperators does). The kernels of a group that has failed go on
// waiting for their peers until GiveUp, or the destructor, aborts the communicators of all groups
// of the set, and with them ends the waits behind them in the streams.
// Ranks whose orders of operations differ hear of it in CompareOrder; what was started differently
// before may hang in the stream, until GiveUp. Sizes of an all-to-all differ between ranks and are
// not compared: those that do not fit each other hang likewise.
// Arithmetic: sums are NCCL's, in its order, which is fixed for a group on given machines; not the
// bits of Gloo's group. Barrier, SumDoubles and Broadcast go through the host's group of the same
// ranks, which also carries NCCL's id.
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
  int64_t timeout_ms = kCollectiveTimeoutMs;  // of one set-up of connections
  std::function<Status()> doomed{};           // Rendezvous::doomed
  CommunicatorSet* together = nullptr;        // of all groups of this process
};

class NcclCollective final : public Collective {
 public:
  // Blocks until all members have called it. The calling thread's GPU is the stream's. Errors:
  // kCollectiveFailed (with NCCL's text).
  static Result<std::unique_ptr<NcclCollective>> Open(NcclSetup setup);
  // A healthy group is ended together with its peers (at most five seconds), else aborted.
  ~NcclCollective() override;

  uint32_t rank() const override { return setup_.host->rank(); }
  uint32_t world() const override { return setup_.host->world(); }
  Ticket StartAllGather(const BlockView& block) override;
  Ticket StartReduceScatter(const BlockView& block) override;
  Ticket StartAllToAll(const PartsView& parts) override;
  device::Stream* stream() override { return setup_.stream; }
  // True when the operation has ended, or the group has failed.
  bool Test(Ticket ticket) override;
  // Whether the group is well; does not wait for the stream.
  Status Wait(Ticket ticket) override;
  // Compares the order of what was started, through the host's group.
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
  // The communicator is finalized and destroyed together with its peers; false where that fails.
  bool EndsInOrder();
  // The call of this name has returned `result`; waits until NCCL is done with it.
  void Settle(const char* name, int result);
  void Fail(const char* name, int result);
  // False: this group has failed, or was aborted with another one.
  bool Usable();
  // Looks for errors that came by themselves.
  void Look();
  void AskDoomed();
  Ticket Keep(const char* name, int result);
  // Puts all sends and receives of an all-to-all into the stream, as one operation. Returns the
  // first result that is neither success nor "in progress".
  int ExchangeParts(const PartsView& parts);
  void FailWith(const Status& why);
  std::string Doing(const char* name) const;

  const NcclSetup setup_;
  void* comm_ = nullptr;  // in use only as long as the set has it
  Status failure_;
  int64_t asked_ns_ = 0;  // doomed
  Ticket last_ = 0;
  OperationOrder order_;
  std::map<Ticket, device::Stream::Marker> in_flight_;
};

}  // namespace tidepool::trainer

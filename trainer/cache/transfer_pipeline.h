// TransferPipeline: carries out fetches (server to rCache, then all-gather) and submissions
// (reduce-scatter, then rCache to server) in request order, without a thread of its own: every call
// advances all of them as far as possible.
//
// One thread (the trainer's main thread). Only Wait, WaitAll and AwaitOperators block. It serves
// the host, and device memory whose collectives have no stream (Gloo): results are there when the
// CPU has seen them. On a device a transfer begins when the CPU has seen the compute stream pass
// the block's last use; the CPU then stores the ticket's `ready`. No stream waits.
// Invariants:
//  1. collectives start by operation number, not by arrival: all ranks of a group start the same
//     ones in the same order (trainer/comm/collective.h);
//  2. a fetch into a block starts after the block's earlier operation has ended; that operation
//     has a lower number;
//  3. after an error nothing more is started; every later call returns that error.
// Source: the asynchronous chunk engine of Elixir v2, section 4.3, with one queue instead of its
// streams.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/status.h"
#include "trainer/cache/pipeline_setup.h"

namespace tidepool::trainer {

class TransferPipeline {
 public:
  explicit TransferPipeline(PipelineSetup setup);

  // Begins a pass: numbers its operations from here on.
  void BeginPass() { names_.BeginPass(); }
  // Fetches this rank's shard to its place in `block`, after all uses of the block, then
  // all-gathers; or fetches the whole chunk (PipelineSetup::exchange).
  OpId Fetch(ChunkId chunk, std::byte* block, const Wanted& wanted, const BlockPast& past);
  // Reduces the whole block over the group (to all of its ranks if the setup says so), then sends
  // this rank's shard to the server.
  OpId Submit(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch);
  // Sends a shard of zeros: without bytes where the server takes that, else from `block`, which
  // holds them. No rank of the group has another gradient: they exchange nothing.
  OpId SubmitZeros(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch);
  // Notes that an operator is in the compute stream; true if a mark should follow: never.
  bool Used() const { return false; }
  // Records a mark after all work in the compute stream.
  UseMark Mark() { return compute_ == nullptr ? 0 : compute_->Record(); }

  // True when the transfer has ended.
  bool Done(OpId id) const { return id < first_ || ops_[id - first_].stage == Stage::kDone; }
  // These return the latched error of the server or the group.
  Status Progress();
  // `prefetched`: count it if it has not arrived yet.
  Status Wait(OpId id, bool prefetched);
  Status WaitAll();
  // Waits for all transfers, and lets the groups compare their orders.
  Status FinishPass();
  // On a device: waits until the work in the compute stream has ended.
  Status AwaitOperators();

  // By data group, since construction.
  const std::vector<GroupTraffic>& traffic() const { return traffic_; }
  uint64_t wait_ns() const { return wait_ns_; }
  uint64_t late() const { return late_; }

 private:
  // Fetch:  kQueued -> kAtServer -> kTurn -> kInGroup -> kDone.  Submission: kTurn -> kInGroup ->
  // kQueued -> kAtServer -> kDone.
  enum class Stage : uint8_t { kQueued, kAtServer, kTurn, kInGroup, kDone };

  struct Op {
    OpId id;
    ChunkId chunk;
    bool fetch;
    uint32_t micro_batch;
    Wanted wanted;  // for a submission: the version of the gradients
    std::byte* block;
    OpId after;
    // The point in the compute stream after which the transfer begins; 0: none.
    device::Stream::Marker gate;
    Stage stage;
    uint64_t ticket;  // of the server or of the group, by stage
    OperationName name{};
    bool zeros = false;         // a submission of zeros
    bool gathers_next = false;  // the sum is in shards, to be gathered by all ranks
  };

  // Sends the request of the operation.
  Result<client::Ticket> Request(const Op& op) const;
  Op& Of(OpId id) { return ops_[id - first_]; }
  OpId Add(Op op);
  void Advance(Op* op);
  bool StartAtServer(Op* op);
  bool StartInGroup(Op* op);
  // The sum of an all-reduce is in shards: gathers them on all ranks.
  void StartGatherOfSums(Op* op);
  GroupTraffic& CountOf(const Op& op) {
    return traffic_[setup_.layout->chunks[op.chunk].data_group];
  }
  // Takes the outcome; blocks until it is there.
  void FinishAtServer(Op* op);
  void FinishInGroup(Op* op);
  // The operation that must advance before `op` can; null if `op` can advance now.
  Op* Blocker(Op* op);
  // Completes the operation that blocks others; waits.
  void Unblock(Op* blocker);
  bool GatePassed(const Op& op);
  Status WaitFor(OpId id);
  bool Latch(Status status);

  const PipelineSetup setup_;
  PassNames names_;
  client::ChunkService* const service_;
  device::Stream* const compute_;  // null on the host
  std::deque<Op> ops_;             // numbers first_, first_ + 1, ...; ended ones are popped
  OpId first_ = 1;
  OpId next_turn_ = 1;                 // operation whose collective starts next
  uint32_t at_server_ = 0;             // tickets in flight
  std::vector<GroupTraffic> traffic_;  // by data group
  uint64_t wait_ns_ = 0, late_ = 0;
  Status status_;
};

}  // namespace tidepool::trainer

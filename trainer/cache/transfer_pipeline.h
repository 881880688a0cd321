// TransferPipeline: carries out fetches (server to rCache, then all-gather) and submissions
// (reduce-scatter, then rCache to server), in the order of the requests, without a thread of its
// own: every call moves all of them as far as they can go.
//
// One thread (the trainer's main thread). Only Wait, WaitAll and AwaitOperators block.
// It serves the host, and memory of a device whose collectives have no stream (Gloo): results are
// there when the CPU has seen them. On a device a transfer begins when the CPU has seen the compute
// stream pass what used the block before, and the CPU stores the ticket's `ready`: no stream waits
// for anything.
// Invariants:
//  1. collectives start in the order of the operations' numbers, not of arrivals: all ranks of a
//     group start the same ones in the same order (trainer/comm/collective.h);
//  2. a fetch into a block starts after the block's earlier operation has ended; that operation has
//     a lower number;
//  3. after an error nothing more is started; every later call returns that error.
// Source: the asynchronous chunk engine of Elixir v2, section 4.3, with one queue in place of its
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

  // A pass begins: its operations have their places from here on.
  void BeginPass() { names_.BeginPass(); }
  // Brings this rank's shard to its place in `block`, behind all that used it, then gathers all
  // shards; the whole chunk at once where the setup says so.
  OpId Fetch(ChunkId chunk, std::byte* block, const Wanted& wanted, const BlockPast& past);
  // Reduces the whole block over the group (to all of its ranks where the setup says so), then
  // sends this rank's shard to the server.
  OpId Submit(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch);
  // Notes that an operator is in the compute stream; true when a mark behind it is wanted.
  bool Used() const { return false; }
  // Puts a mark behind all that is in the compute stream.
  UseMark Mark() { return compute_ == nullptr ? 0 : compute_->Record(); }

  // True when the transfer has ended.
  bool Done(OpId id) const { return id < first_ || ops_[id - first_].stage == Stage::kDone; }
  // These return what the server or the group answered, latched.
  Status Progress();
  // `prefetched`: count it when it is not there yet.
  Status Wait(OpId id, bool prefetched);
  Status WaitAll();
  // Waits for all, and lets the groups compare their order.
  Status FinishPass();
  // On a device: waits until what is in the compute stream has ended.
  Status AwaitOperators();

  // By data group, since the construction.
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
    // The point in the compute stream behind which the transfer begins; 0: none.
    device::Stream::Marker gate;
    Stage stage;
    uint64_t ticket;  // of the server or of the group, as the stage says
    OperationName name{};
    bool gathers_next = false;  // the sum is in shards, which all ranks get
  };

  Op& Of(OpId id) { return ops_[id - first_]; }
  OpId Add(Op op);
  void Advance(Op* op);
  bool StartAtServer(Op* op);
  bool StartInGroup(Op* op);
  // The sum of an all-reduce is in shards: they go to all ranks.
  void StartGatherOfSums(Op* op);
  GroupTraffic& CountOf(const Op& op) {
    return traffic_[setup_.layout->chunks[op.chunk].data_group];
  }
  // Takes the outcome; blocks when it is not there yet.
  void FinishAtServer(Op* op);
  void FinishInGroup(Op* op);
  // The operation that must move on before `op` can; null when `op` can by now.
  Op* Blocker(Op* op);
  // Carries out what blocks others; waits.
  void Unblock(Op* blocker);
  bool GatePassed(const Op& op);
  Status WaitFor(OpId id);
  bool Latch(Status status);

  const PipelineSetup setup_;
  PassNames names_;
  client::ChunkService* const service_;
  device::Stream* const compute_;  // null on the host
  std::deque<Op> ops_;             // numbers first_, first_ + 1, ...; ended ones leave at the front
  OpId first_ = 1;
  OpId next_turn_ = 1;                 // operation whose collective starts next
  uint32_t at_server_ = 0;             // tickets in flight
  std::vector<GroupTraffic> traffic_;  // by data group
  uint64_t wait_ns_ = 0, late_ = 0;
  Status status_;
};

}  // namespace tidepool::trainer

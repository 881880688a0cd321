// TransferPipeline: carries out fetches (server to rCache, then all-gather) and submissions (reduce-scatter, then rCache to server), in
// the order in which they were asked for, without a thread of its own: every call moves all of them as far as they can go.
//
// One thread (the trainer's main thread). No method but Wait and WaitAll blocks.
// Invariants:
//  1. collectives start in the order of the operations' numbers, whatever arrives when: all ranks of a group start the same ones in the
//     same order (trainer/comm/collective.h);
//  2. a fetch into a block starts after the block's earlier operation has ended; that operation has a lower number;
//  3. after an error nothing more is started; every later call returns that error.
// Source: the asynchronous chunk engine of Elixir v2, section 4.3, with one queue in place of its streams.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "trainer/comm/collective.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

class TransferPipeline {
 public:
  using OpId = uint64_t;  // from 1, consecutive; 0 stands for an operation that ended long ago

  // All must outlive the pipeline. `groups[g]` is the collective of data group g; null where this rank is no member.
  TransferPipeline(const ChunkLayout* layout, Rank rank, client::ChunkService* service, std::vector<Collective*> groups);

  // This rank's shard of `version` comes to its place in `block` once operation `after` has ended, then all shards are gathered.
  OpId Fetch(ChunkId chunk, std::byte* block, Version version, OpId after);
  // The whole block is reduced over the group, then this rank's shard goes to the server.
  OpId Submit(ChunkId chunk, std::byte* block, Version version, uint32_t micro_batch);

  bool Done(OpId id) const { return id < first_ || ops_[id - first_].stage == Stage::kDone; }
  // Errors of these three: what the server or the group answered, latched.
  Status Progress();
  Status Wait(OpId id);
  Status WaitAll();

  uint64_t bytes_h2d() const { return bytes_h2d_; }
  uint64_t bytes_d2h() const { return bytes_d2h_; }

 private:
  // Fetch:  kQueued -> kAtServer -> kTurn -> kInGroup -> kDone.  Submission: kTurn -> kInGroup -> kQueued -> kAtServer -> kDone.
  enum class Stage : uint8_t { kQueued, kAtServer, kTurn, kInGroup, kDone };

  struct Op {
    OpId id;
    ChunkId chunk;
    bool fetch;
    uint32_t micro_batch;
    Version version;
    std::byte* block;
    OpId after;
    Stage stage;
    uint64_t ticket;  // of the server or of the group, as the stage says
  };

  Op& Of(OpId id) { return ops_[id - first_]; }
  OpId Add(Op op);
  void Advance(Op* op);
  bool StartAtServer(Op* op);
  bool StartInGroup(Op* op);
  // Takes the outcome; blocks when it is not there yet.
  void FinishAtServer(Op* op);
  void FinishInGroup(Op* op);
  // The operation that must move on before `op` can.
  Op* Blocker(Op* op);
  Collective* GroupOf(const Op& op) const;
  bool Latch(Status status);

  const ChunkLayout* layout_;
  Rank rank_;
  client::ChunkService* service_;
  std::vector<Collective*> groups_;
  std::deque<Op> ops_;  // numbers first_, first_ + 1, ...; ended ones leave at the front
  OpId first_ = 1;
  OpId next_turn_ = 1;      // whose collective starts next
  uint32_t at_server_ = 0;  // tickets in flight
  uint64_t bytes_h2d_ = 0, bytes_d2h_ = 0;
  Status status_;
};

}  // namespace tidepool::trainer

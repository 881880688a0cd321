// CachePass: one pass over the model: what kind it is, on which version, where in the order of uses
// it stands, and what is fetched and evicted there.
//
// One thread (the trainer's main thread). PassFollower names what the known order wants; this class
// lets CachedChunks do it, and asks an eviction policy where nothing is planned.
// Invariants:
//  1. every decision (victim, prefetch, order of collectives) is a function of the order of calls
//     and the shared seed, never of arrival times: ranks that make the same calls start the same
//     collectives in the same order;
//  2. a pass without a known order that finds the rCache too small becomes trace-only: from there
//     on it records, and nothing is fetched or handed in;
//  3. a frozen chunk stays through new versions, until its block is wanted for another one.
// The caller makes no call after one that has returned an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/cache/cached_chunks.h"
#include "trainer/cache/pass_follower.h"
#include "trainer/plan/eviction_policy.h"

namespace tidepool::trainer {

// How an rCache fetches ahead and records; equal on all ranks.
struct CacheOptions {
  uint64_t prefetch_depth = 2;  // most chunks being fetched ahead; 0: none
  uint64_t seed = 0;            // equal on all ranks
  // The recording step keeps gradients apart, so that parameters used several times are found.
  bool separate_while_recording = true;
  // Bytes at the end of the rCache that are the caller's, for sums (ParameterCache::SubmitSum).
  uint64_t tail_bytes = 0;
  // How the ranks of a group share the bytes of their chunks; equal on all ranks.
  Exchange exchange = Exchange::kSharded;
};

// Policies that name victims where no plan does. Null: RandomEviction from the shared seed,
// LruEviction.
struct EvictionPolicies {
  std::unique_ptr<EvictionPolicy> recording;   // in a pass whose order is not known yet
  std::unique_ptr<EvictionPolicy> left_order;  // in a pass that has left its known order
};

class CachePass {
 public:
  // `chunks` must outlive the object; `rank` is its rank.
  CachePass(CachedChunks* chunks, Rank rank, const CacheOptions& options,
            EvictionPolicies policies);

  // Gives an order that is known beforehand, as if a pass of this kind had recorded it.
  void Declare(PassKind kind, AccessSchedule schedule) {
    follower_.Declare(kind, std::move(schedule));
  }
  // Begins a pass and fetches ahead; ends the pass before. Errors: kRcacheTooSmall,
  // kChunkNotReady (operators or gradients hold chunks), and those of the server and the group.
  Status Begin(PassKind kind, Version version);
  // The training pass has ended; true when what it recorded is a new order.
  bool End();

  // The pass comes to operators that hold chunks()->pinned(), and hands out `chunks` of them.
  // Waits. Errors: those of the server and the group.
  Status Use(std::span<const ChunkId> chunks);
  // The pass comes to a moment: does what the plan wants there. The call that ends what began here
  // moves the transfers on.
  void Enter(MomentKind kind, ChunkId subject);
  // Fetches what may start `moments` after the present moment.
  void PrefetchAhead(uint64_t moments = 0) { PrefetchUntil(follower_.position() + moments); }
  // The present moment needs the chunk: fetched where no plan has. The pass may become trace-only.
  void Demand(ChunkId chunk);
  // Gives the chunk a place; the policy decides where nothing is planned. False: the pass has gone
  // trace-only.
  bool Place(ChunkId chunk);

  // While recording: the chunk's gradients are handed in at the end of backward, not where they
  // came in this micro-batch.
  void WithdrawGradients(ChunkId chunk) { follower_.WithdrawGradients(chunk); }
  void MarkMicroBatch() { follower_.MarkMicroBatch(); }
  // A trace-only evaluation has ended; a micro-batch of training is recorded behind it.
  void BeginDryTraining();

  bool open() const { return open_; }
  // True within a training pass, or behind a trace-only evaluation that goes on as one.
  bool training() const { return open_ && training_; }
  bool trace_only() const { return trace_only_; }
  // True when the gradients of all chunks stay with the caller until the end of backward.
  bool separate() const { return separate_; }
  Version version() const { return version_; }
  const PassFollower& follower() const { return follower_; }

  // The smallest --rcache for the order followed or recorded so far, in bytes.
  uint64_t SmallestRcacheBytes() const;
  // kRcacheTooSmall, with the smallest size that works.
  Status TooSmall(const std::string& reason) const;

 private:
  uint64_t BlocksNeeded() const { return std::max(trace_only_blocks_, follower_.BlocksNeeded()); }
  void RunStep(const PlanStep& step, bool ahead);
  void PrefetchUntil(uint64_t horizon);

  CachedChunks* const chunks_;
  const ChunkLayout& layout_;
  const Rank rank_;
  const CacheOptions options_;
  const EvictionPolicies policies_;
  PassFollower follower_;
  Moment moment_;  // reused
  bool open_ = false, training_ = false, separate_ = false, has_version_ = false,
       trace_only_ = false;
  Version version_ = 0;
  uint64_t trace_only_blocks_ = 0;  // what a trace-only evaluation needed
};

}  // namespace tidepool::trainer

// CachePass: one pass over the model: its kind, its version, its position in the order of uses, and
// the fetches and evictions at that position.
//
// One thread (the trainer's main thread). PassFollower names the steps of the known order; this
// class makes CachedChunks execute them, and asks an eviction policy where there is no plan.
// Invariants:
//  1. every decision (victim, prefetch, order of collectives) is a function of the order of calls
//     and the shared seed, never of arrival times: ranks that make the same calls start the same
//     collectives in the same order;
//  2. a pass without a known order that finds the rCache too small becomes trace-only: from there
//     on it records, and nothing is fetched or submitted;
//  3. a frozen chunk stays across versions, until its block is needed for another chunk;
//  4. a pass that follows an order places all its chunks as the plan says, whatever the model uses:
//     those of units that are not used, or not known to be used, are placed and not fetched. What
//     runs ahead depends on what is left out on all ranks alone. So ranks with other units start
//     the operations that they share in the same order, and the plan holds in every step.
// After a call has returned an error, no further call may be made.
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
#include "trainer/cache/moment_memory.h"
#include "trainer/cache/pass_follower.h"
#include "trainer/cache/unit_routing.h"
#include "trainer/plan/eviction_policy.h"
#include "trainer/plan/traffic.h"

namespace tidepool::trainer {

// How an rCache prefetches and records; equal on all ranks.
struct CacheOptions {
  uint64_t prefetch_depth = 2;  // most chunks in flight ahead of need; 0: no prefetching
  uint64_t seed = 0;            // equal on all ranks
  // The recording step keeps gradients separate, so that parameters used several times are found.
  bool separate_while_recording = true;
  // Bytes at the end of the rCache that belong to the caller, for sums (ParameterCache::SubmitSum).
  uint64_t tail_bytes = 0;
  // These sums are fp32, whatever the dtype of their chunks; equal on all ranks.
  bool f32_sums = false;
  // Chunks of units that the model does not use are not fetched, and hand in no gradient. False:
  // every unit counts as used.
  bool leaves_out = true;
  // How the ranks of a group share the bytes of their chunks; equal on all ranks.
  Exchange exchange = Exchange::kSharded;
};

// Policies that choose victims without a plan. Null: RandomEviction with the shared seed,
// LruEviction.
struct EvictionPolicies {
  std::unique_ptr<EvictionPolicy> recording;   // for a pass with an unknown order
  std::unique_ptr<EvictionPolicy> left_order;  // for a pass that has left its known order
};

class CachePass {
 public:
  // `chunks` must outlive the object; `rank` is its rank.
  CachePass(CachedChunks* chunks, Rank rank, const CacheOptions& options, EvictionPolicies policies,
            MemoryLimit limit);

  // Sets an order that is known in advance, as if a pass of this kind had recorded it.
  void Declare(PassKind kind, AccessSchedule schedule) {
    follower_.Declare(kind, std::move(schedule));
  }
  // What a profile says of the most bytes beside chunks.
  void ExpectOthers(uint64_t bytes);
  // Begins a pass and prefetches; ends the previous pass. Errors: kRcacheTooSmall, kChunkNotReady
  // (operators or gradients hold chunks), and those of the server and the group.
  Status Begin(PassKind kind, Version version);
  // Ends a training pass; true if it has recorded a new order.
  bool End();
  // After End of a pass that followed its order, with a memory limit and without budgets yet: makes
  // them by what the pass has measured. Blocks. Errors: those of MomentMemory::Budgets.
  Status LearnBudgets();

  // Enters the moment of operators that hold chunks()->pinned(), and hands out `chunks` of them.
  // Blocks. Errors: those of the server and the group.
  Status Use(std::span<const ChunkId> chunks);
  // Enters a moment: executes the plan's steps there. The caller's next call of Progress (or a
  // wait) moves the transfers.
  void Enter(MomentKind kind, ChunkId subject);
  // The model uses these units in this micro-batch, and the others of the same place are left out
  // until their gradients would leave. False: they are not, because the pass follows no order.
  // Fetches those used that are placed, and what may start now.
  bool Route(const UnitUses& uses);
  // The next moment, if it is about chunks of this unit that are left out; null otherwise.
  const Moment* NextLeftOut(uint32_t unit) const;
  // Enters it without the chunks that it needs.
  void PassBy(const Moment& moment);
  // The chunk's gradients have been submitted: its next use is in the next micro-batch.
  void NoteSubmitted(ChunkId chunk) { routing_.Forget(chunk); }
  // The traffic of the plan without what was left out, by data group; empty without a plan.
  // `zeros_move`: zeros are submitted as bytes.
  std::vector<GroupTraffic> PlannedTraffic(bool zeros_move) const;
  // Starts fetches that may start up to `moments` after the present moment.
  void PrefetchAhead(uint64_t moments = 0) { PrefetchUntil(follower_.position() + moments); }
  // Fetches a chunk that the present moment lacks. The pass may become trace-only.
  void Demand(ChunkId chunk);
  // Gives the chunk a place; the policy decides where there is no plan. False: the pass has become
  // trace-only.
  bool Place(ChunkId chunk);

  // While recording: the chunk's gradients are submitted at the end of backward, not where they
  // came in this micro-batch.
  void WithdrawGradients(ChunkId chunk) { follower_.WithdrawGradients(chunk); }
  void MarkMicroBatch() {
    follower_.MarkMicroBatch();
    routing_.Forget();
  }
  // Continues a trace-only evaluation with a recorded micro-batch of training.
  void BeginDryTraining();

  bool open() const { return open_; }
  // True within a training pass, or after a trace-only evaluation that continues as one.
  bool training() const { return open_ && training_; }
  bool trace_only() const { return trace_only_; }
  // True when the caller keeps all gradients until the end of backward.
  bool separate() const { return separate_; }
  Version version() const { return version_; }
  // Evictions so far that a policy chose, where no plan was followed.
  uint64_t unforeseen() const { return unforeseen_; }
  const MomentMemory& memory() const { return memory_; }
  const PassFollower& follower() const { return follower_; }

  // The smallest --rcache for the order followed or recorded so far, in bytes.
  uint64_t SmallestRcacheBytes() const;
  // kRcacheTooSmall, naming the smallest size that works.
  Status TooSmall(const std::string& reason) const;

 private:
  void BeginRouting();
  uint64_t BlocksNeeded() const { return std::max(trace_only_blocks_, follower_.BlocksNeeded()); }
  // What was used since the last moment, and then no more blocks than the budget of this one.
  void EndPeriod();
  void KeepBudget();
  void RunStep(const PlanStep& step, bool ahead);
  void PrefetchUntil(uint64_t horizon);
  // While the coming moments are about chunks alone that no rank uses, steps that may start behind
  // them may start now, if their blocks are free by now.
  void PrefetchPastQuiet(uint64_t horizon);
  bool MayStartEarly(const PlanStep& step) const;

  CachedChunks* const chunks_;
  const ChunkLayout& layout_;
  const Rank rank_;
  const CacheOptions options_;
  const EvictionPolicies policies_;
  PassFollower follower_;
  UnitRouting routing_;
  MomentMemory memory_;
  std::vector<uint64_t> passed_by_;  // moments of this pass, ascending
  // Placed when the pass began, and not fetched. They stay: another set of chunks would be another
  // plan, and ranks leave out other ones.
  std::vector<ChunkId> left_out_at_begin_;
  Moment moment_;  // reused
  bool open_ = false, training_ = false, separate_ = false, has_version_ = false,
       trace_only_ = false;
  Version version_ = 0;
  uint64_t trace_only_blocks_ = 0;  // need of a trace-only evaluation
  uint64_t unforeseen_ = 0;
};

}  // namespace tidepool::trainer

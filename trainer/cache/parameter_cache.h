// ParameterCache: the rCache: fixed device memory through which all chunks pass: parameters before
// an operator, gradients after backward.
//
// One thread (the trainer's main thread); it has no thread of its own. Blocking calls say so. It is
// the interface for the hooks and the engine, and keeps the first error. CachedChunks holds the
// rCache's content; CachePass the order of uses with its fetches and evictions; ChunkGradients the
// gradients.
// Invariant, besides those of these three: after an error every call returns that error and changes
// nothing, so the step stays unsealed.
// A pass is one training step with all its micro-batches, or one evaluation. The first pass of a
// kind records its order with random eviction, unless the setup brings another policy; later ones
// follow it with Belady's rule and prefetching (Elixir v1, section VI); one that deviates continues
// with LRU. A pass without a known order that finds the rCache too small becomes trace-only: from
// there on it records, and nothing is fetched or submitted. It ends in an error that names the need
// of the whole order. A training step: BeginPass, (forward, backward, FinishBackward) x
// micro-batches, FinishStep; then the caller ends the step at the server. Gradients are summed over
// the chunk's data group, not averaged.
// With streams the rCache is device memory, which this class and its callers pass only to streams.
// If all collectives have streams (or there are none) the CPU runs ahead of the device: a call that
// "may wait" below then enqueues a wait into the compute stream instead, and the CPU itself waits
// in FinishStep, and when kTicketsUsed transfers are in flight (trainer/cache/ahead_pipeline.h).
// Decisions are the same as on the host. Operators, and copies of gradients to their places, must
// be in the compute stream before the call that ends them (Release, GradientDone, SubmitBorrowed).
// A transfer error may be reported after its chunk was used; FinishStep reports all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "trainer/cache/cache_pass.h"
#include "trainer/cache/cache_streams.h"
#include "trainer/cache/cached_chunks.h"
#include "trainer/cache/chunk_gradients.h"
#include "trainer/cache/pass_follower.h"
#include "trainer/comm/collective.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

struct CacheSetup {  // all pointers must outlive the cache
  const ChunkLayout* layout = nullptr;
  Rank rank = 0;
  client::ChunkService* service = nullptr;  // attached; the cache uses all of its rCache memory
  // By data group; null (or missing) where this rank is not a member or the group has one rank.
  std::vector<Collective*> groups;
  Clock* clock = nullptr;
  CacheOptions options;
  EvictionPolicies policies = {};
  CacheStreams streams = {};
  MemoryLimit limit = {};  // not beside streams: memory of a device cannot be given back
};

class ParameterCache {
 public:
  // Errors: kRcacheTooSmall (no room for the resident chunks and one block), kUsageError (ranks of
  // a common data group would decide differently: their chunks are not alike).
  static Result<std::unique_ptr<ParameterCache>> Create(CacheSetup setup);

  // Sets an order that is known in advance, as if a pass of this kind had recorded it.
  void Declare(PassKind kind, AccessSchedule schedule) {
    if (kind == PassKind::kTrain) order_told_ = false;
    pass_.Declare(kind, std::move(schedule));
  }

  // With a memory limit: what a profile says of the most bytes beside chunks; call it before
  // Declare.
  void ExpectOthers(uint64_t bytes) { pass_.ExpectOthers(bytes); }

  // Begins a pass on parameters of `version`; a new version makes everything in the rCache stale
  // except frozen chunks. Ends the previous pass. Errors: kRcacheTooSmall (the known order needs
  // more blocks; names the smallest size), kChunkNotReady (operators are still running).
  Status BeginPass(PassKind kind, Version version);

  // Call before an operator: its chunks become present and stay until Release. Waits. Calls nest
  // and are counted. Take the moves afterwards. Errors: kChunkNotReady (no pass), and those of the
  // server and the group.
  Status Acquire(std::span<const ChunkId> chunks);
  // Call after the operator. Errors: as latched.
  Status Release(std::span<const ChunkId> chunks);
  // Announces that one operator, or several nested ones, use these parameters of acquired chunks
  // until EndUse. If recording finds that a parameter is used again after its gradient arrived, its
  // gradients are kept separate from then on. Errors: kTensorStateIllegal (found later: the
  // parameter's place holds its gradient).
  Status BeginUse(std::span<const ParameterId> parameters);
  Status EndUse(std::span<const ParameterId> parameters);
  // Appends the changes of place since the last call to `out`, in order. Call it after every call
  // into the cache.
  void TakeMoves(std::vector<Move>* out) { chunks_.TakeMoves(out); }
  // The rest of this micro-batch uses these units (ParameterNote::unit). True: the model may leave
  // the others of the place out, and calls PassBy where it would have used them; their chunks are
  // not fetched, and their gradients are zeros of which no byte moves. False: it must use all of
  // them, because no order is known. All ranks that share a data group make the same calls. Take
  // the moves afterwards, here and below. Errors are latched.
  bool RouteUnits(const UnitUses& uses);
  // The model comes to where it would have used the unit: in forward, and in backward. Errors:
  // those of the server and the group.
  Status PassBy(uint32_t unit);
  // Moves transfers on. Never waits.
  Status Progress();
  // Waits until all operators of a device have ended; on the host returns immediately. Call it
  // before LibTorch waits for a result (a loss): LibTorch's own waits do not poll, and a lost peer
  // would not end them. Errors: as latched; results are then garbage.
  Status AwaitOperators() { return status_.ok() ? Latch(chunks_.AwaitOperators()) : status_; }
  // Waits until no transfer, prefetches included, is in flight; none starts before the pass's next
  // call. Errors: as latched.
  Status AwaitTransfers();

  // A parameter's gradient has arrived: returns where to copy it, over the parameter in the chunk's
  // block (Elixir v2, section 4.1); null if the chunk is in separate mode: the caller then keeps
  // the gradient, accumulates, and submits it through BorrowBlock. May wait. Errors:
  // kTensorStateIllegal (a second gradient over a first one, or one of a frozen parameter), and
  // those of Acquire.
  Result<std::byte*> GradientPlace(ParameterId parameter);
  // The gradient has been copied. If it was the chunk's last, starts the chunk's reduce-scatter and
  // submission.
  Status GradientDone(ParameterId parameter);
  // Chunks in separate mode with gradients since the last FinishBackward, ascending.
  std::vector<ChunkId> SeparateChunks() const { return gradients_.SeparateChunks(); }
  // Call at the end of backward for each of SeparateChunks: returns a zeroed block for its
  // gradients; fill it, then submit it. May wait.
  Result<SeparateBlock> BorrowBlock(ChunkId chunk);
  Status SubmitBorrowed(ChunkId chunk);
  // Ends the backward of a micro-batch (0, 1, ...): parameters without a gradient get zeros, and
  // every chunk is submitted. Errors: kRcacheTooSmall (the pass became trace-only; names the
  // smallest size that works), and those of the server and the group.
  Status FinishBackward(uint32_t micro_batch);
  // For a caller that accumulates a step's gradients itself: submits the sum of one chunk,
  // complete, in the tail of the rCache (CacheOptions::tail_bytes), in the form of
  // JobSpec::GradientTypeOf. The ranks of the data group first add up their sums, in order. The
  // chunk gets no other gradient in this step. The place is the server's until AwaitSum, or
  // FinishStep, has returned. Errors: kChunkNotReady (no training pass), and as latched.
  Result<OpId> SubmitSum(ChunkId chunk, std::byte* place);
  // Waits until the server has the sum. Errors: as latched.
  Status AwaitSum(OpId op);
  // Ends the training pass: waits until the server has answered every submission, and each data
  // group's ranks have compared their orders. With a memory limit the ranks compare what they have
  // measured, after the first pass that followed its order. Errors: kRcacheTooSmall (the limit does
  // not hold what a moment needs; names one that does), and as latched.
  Status FinishStep();

  // True once a pass became trace-only: no chunk has a place any more, operators read what the
  // caller chooses, and gradients are dropped.
  bool trace_only() const { return pass_.trace_only(); }
  // Call after a trace-only evaluation: then run forward and backward of one micro-batch, and
  // FinishBackward reports the need of the order.
  void BeginDryTraining() { pass_.BeginDryTraining(); }

  // True when the present pass follows a known order.
  bool following() const { return pass_.follower().following(); }
  // The present pass's plan; null while it records or has left the known order.
  const Plan* plan() const { return pass_.follower().plan(); }
  // The traffic of that plan, without what was left out, by data group; empty without a plan.
  std::vector<GroupTraffic> PlannedTraffic() const {
    return pass_.PlannedTraffic(!service_->attachment().takes_zeros);
  }
  const AccessSchedule& schedule(PassKind kind) const { return pass_.follower().schedule(kind); }
  uint64_t blocks() const { return chunks_.blocks(); }
  // The smallest --rcache for the order followed or recorded so far, in bytes.
  uint64_t SmallestRcacheBytes() const { return pass_.SmallestRcacheBytes(); }
  CacheCounters counters() const;
  const std::string& NameOf(ParameterId parameter) const {
    return layout_.parameters[parameter].name;
  }

 private:
  explicit ParameterCache(CacheSetup setup);

  // Keeps the first error; returns what is kept.
  Status Latch(Status status);
  template <typename Value>
  Result<Value> Latch(Result<Value> result) {
    if (!result.ok()) return Latch(result.status());
    return result;
  }
  Status NotInPass(const char* call);

  client::ChunkService* const service_;
  const ChunkLayout& layout_;
  CachedChunks chunks_;
  CachePass pass_;
  ChunkGradients gradients_;
  Status status_;
  bool order_told_ = false;  // to the server, which updates in this order
};

}  // namespace tidepool::trainer

// ParameterCache: the rCache: fixed device memory through which all chunks pass: parameters before
// an operator, gradients after backward.
//
// One thread (the trainer's main thread); it has no thread of its own. Calls that may wait say so.
// It is the front that the hooks and the engine call, and keeps the first error. What is in the
// rCache is CachedChunks; the order of uses, and what it wants fetched and evicted, is CachePass;
// gradients are ChunkGradients.
// Invariant, beside those of the three: after an error every call returns that error and changes
// nothing, so the step stays unsealed.
// A pass is one training step with all its micro-batches, or one evaluation. The first pass of a
// kind records its order with random eviction, unless the setup brings another policy; later ones
// follow it with Belady's rule and prefetch (Elixir v1, section VI); one that leaves it goes on
// with LRU. A pass without a known order that finds the rCache too small becomes trace-only: from
// there on it records, and nothing is fetched or handed in. It ends in an error that names what the
// whole order needs. A training step: BeginPass, (forward, backward, FinishBackward) x
// micro-batches, FinishStep; then the caller ends the step at the server. Gradients are summed over
// the chunk's data group, not averaged.
// With streams the rCache is memory of a device, which this class and its callers hand to streams
// only. Where all collectives have streams (or there are none) the CPU runs ahead of the device:
// where a call "may wait" below, it puts a wait into the compute stream instead, and the CPU itself
// waits in FinishStep, and where kTicketsUsed transfers are in flight
// (trainer/cache/ahead_pipeline.h). Decisions are the same as on the host. Operators, and copies of
// gradients to their places, must be in the compute stream before the call that ends them (Release,
// GradientDone, SubmitBorrowed). An error of a transfer may be reported after its chunk was used;
// FinishStep reports all of them.
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
  client::ChunkService* service = nullptr;  // attached; its rCache memory is used from end to end
  // By data group; null where this rank is no member or the group has one rank.
  std::vector<Collective*> groups;
  Clock* clock = nullptr;
  CacheOptions options;
  EvictionPolicies policies = {};
  CacheStreams streams = {};
};

class ParameterCache {
 public:
  // Errors: kRcacheTooSmall (no room for the resident chunks and one block), kUsageError (ranks
  // with a data group in common would decide apart: their chunks are not alike).
  static Result<std::unique_ptr<ParameterCache>> Create(CacheSetup setup);

  // Gives an order that is known beforehand, as if a pass of this kind had recorded it.
  void Declare(PassKind kind, AccessSchedule schedule) { pass_.Declare(kind, std::move(schedule)); }

  // Begins a pass on parameters of `version`; a new version makes all that is in the rCache stale,
  // but frozen chunks. Ends the pass before. Errors: kRcacheTooSmall (the known order needs more
  // blocks; names the smallest size), kChunkNotReady (operators are still running).
  Status BeginPass(PassKind kind, Version version);

  // Call before an operator: its chunks are present and stay until Release. Waits. Calls nest and
  // are counted. Take the moves afterwards. Errors: kChunkNotReady (no pass), and those of the
  // server and the group.
  Status Acquire(std::span<const ChunkId> chunks);
  // Call after the operator. Errors: as latched.
  Status Release(std::span<const ChunkId> chunks);
  // An operator, or several nested ones, use these parameters of acquired chunks until EndUse. A
  // parameter that is used again after its gradient came has its gradients kept apart from then on,
  // where that is found while recording.
  // Errors: kTensorStateIllegal (later: the parameter's place holds its gradient).
  Status BeginUse(std::span<const ParameterId> parameters);
  Status EndUse(std::span<const ParameterId> parameters);
  // Appends the changes of place since the last call to `out`, in order. Call it after every call
  // into the cache.
  void TakeMoves(std::vector<Move>* out) { chunks_.TakeMoves(out); }
  // Moves transfers on. Never waits.
  Status Progress();
  // Waits until all operators of a device have ended; on the host returns immediately. Call it
  // before LibTorch waits for a result (a loss): its own waits poll nothing, and a lost peer would
  // not end them. Errors: as latched; results are garbage then.
  Status AwaitOperators() { return status_.ok() ? Latch(chunks_.AwaitOperators()) : status_; }
  // Waits until no transfer is in flight, prefetches included: none is in flight from then until
  // the pass's next call. Errors: as latched.
  Status AwaitTransfers();

  // A parameter's gradient has come: where to copy it, over the parameter in the chunk's block
  // (Elixir v2, section 4.1); null when the chunk is in separate mode: the caller keeps the
  // gradient, adds to it, and hands it in through BorrowBlock. May wait. Errors:
  // kTensorStateIllegal (a second gradient over a first one, or one of a frozen parameter), and
  // those of Acquire.
  Result<std::byte*> GradientPlace(ParameterId parameter);
  // The gradient has been copied. When it was the chunk's last, the chunk goes to reduce-scatter
  // and server.
  Status GradientDone(ParameterId parameter);
  // Chunks in separate mode for which gradients came since the last FinishBackward, ascending.
  std::vector<ChunkId> SeparateChunks() const { return gradients_.SeparateChunks(); }
  // At the end of backward, for each of SeparateChunks: a zeroed block for its gradients; fill it,
  // then submit it. May wait.
  Result<SeparateBlock> BorrowBlock(ChunkId chunk);
  Status SubmitBorrowed(ChunkId chunk);
  // The backward of a micro-batch (0, 1, ...) has ended: parameters without a gradient get zeros,
  // and every chunk is handed in. Errors: kRcacheTooSmall (the pass became trace-only; names the
  // smallest size that works), and those of the server and the group.
  Status FinishBackward(uint32_t micro_batch);
  // For a caller that adds up a step's gradients itself: hands in a chunk's, which lie in the tail
  // of the rCache (CacheOptions::tail_bytes), all of them, in the form of JobSpec::GradientTypeOf.
  // No other gradient of the chunk comes in this step. The place is the server's until AwaitSum, or
  // FinishStep, has returned. Requires a data group of one rank. Errors: kChunkNotReady (no
  // training pass), and as latched.
  Result<OpId> SubmitSum(ChunkId chunk, std::byte* place);
  // Waits until the server has the sum. Errors: as latched.
  Status AwaitSum(OpId op);
  // Ends the training pass: waits until the server has answered every submission, and the ranks of
  // each data group have compared what they started.
  Status FinishStep();

  // True once a pass became trace-only: no chunk has a place any more, what operators read is the
  // caller's choice, and gradients go nowhere.
  bool trace_only() const { return pass_.trace_only(); }
  // Call when a trace-only evaluation has ended: then go through the forward and backward of one
  // micro-batch, and FinishBackward reports what the order needs.
  void BeginDryTraining() { pass_.BeginDryTraining(); }

  // True when the present pass follows a known order.
  bool following() const { return pass_.follower().following(); }
  // The present pass's plan; null while it records or has left the known order.
  const Plan* plan() const { return pass_.follower().plan(); }
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
};

}  // namespace tidepool::trainer

// ParameterCache: the rCache: fixed device memory through which all chunks pass: parameters before
// an operator, gradients after backward.
//
// One thread (the trainer's main thread); it has no thread of its own. Calls that may wait say so.
// Invariants:
//  1. every decision (victim, prefetch, order of collectives) is a function of the order of calls
//     and the shared seed, never of arrival times: ranks that make the same calls start the same
//     collectives in the same order;
//  2. an eviction writes nothing, the server has the master copy (Elixir v1, section VII);
//  3. a block that holds gradients is not given up before they are in flight, and not written
//     before the server has answered;
//  4. after an error every call returns that error and changes nothing: the step stays unsealed;
//  5. a frozen chunk is only used: it has no gradient, is never handed in, and stays through new
//     versions, until its block is wanted for another one.
// A pass is one training step with all its micro-batches, or one evaluation. The first pass of a
// kind records its order with random eviction, unless the setup brings another policy; later ones
// follow it with Belady's rule and prefetch (Elixir v1, section VI); one that leaves it goes on
// with LRU. A pass without a known order that finds the rCache too small goes dry: from there on it
// records, and nothing is fetched or handed in. It ends in an error that names what the whole order
// needs. A training step: BeginPass, (forward, backward, FinishBackward) x micro-batches,
// FinishStep; then the caller ends the step at the server. Gradients are summed over the chunk's
// data group, not averaged.
// With streams the rCache is memory of a device, which this class and its callers hand to streams
// only. Where all collectives have streams (or there are none) the CPU runs ahead of the device:
// where a call "may wait" below, it puts a wait into the compute stream instead, and the CPU itself
// waits in FinishStep, and where kTicketsUsed transfers are in flight
// (trainer/cache/ahead_pipeline.h). Decisions are the same as on the host. Operators, and copies of
// gradients to their places, must be in the compute stream before the call that ends them (Release,
// GradientDone, SubmitBorrowed). An error of a transfer may be reported after its chunk was used;
// FinishStep reports all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "client/chunk_service.h"
#include "trainer/cache/block_table.h"
#include "trainer/cache/cache_streams.h"
#include "trainer/cache/pass_follower.h"
#include "trainer/cache/pipeline.h"
#include "trainer/comm/collective.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/layout/tensor_state.h"
#include "trainer/plan/eviction_policy.h"

namespace tidepool::trainer {

// The chunk's parameters are now at `block`; null: they have no place.
struct Move {
  ChunkId chunk = 0;
  std::byte* block = nullptr;
};

struct SeparatePlace {
  ParameterId parameter = 0;
  std::byte* data = nullptr;  // where its gradient goes
};
struct SeparateBlock {
  std::vector<SeparatePlace> places;  // all parameters of the chunk; zero-filled
};

struct CacheCounters {
  uint64_t hits = 0;        // chunks that were there, or in flight, when an operator needed them
  uint64_t misses = 0;      // fetched because an operator waited for them
  uint64_t prefetches = 0;  // fetched ahead
  // Those of `prefetches` that were not there yet when an operator needed them. Where the CPU runs
  // ahead: those for which a look found the compute stream waiting, so a lower bound.
  uint64_t late_prefetches = 0;
  uint64_t evictions = 0;
  uint64_t submits = 0;     // chunks whose gradients were handed in
  uint64_t deviations = 0;  // passes that left the recorded order
  uint64_t bytes_h2d = 0, bytes_d2h = 0;
  // Time the CPU waited: for chunks, in operators and gradients; for the server, in FinishStep.
  uint64_t wait_ns = 0;

  double hit_rate() const {
    return hits + misses == 0 ? 1.0
                              : static_cast<double>(hits) / static_cast<double>(hits + misses);
  }
};

struct CacheOptions {
  uint64_t prefetch_depth = 2;  // most chunks being fetched ahead; 0: none
  uint64_t seed = 0;            // equal on all ranks
  // The recording step keeps gradients apart, so that parameters used several times are found.
  bool separate_while_recording = true;
};

// Policies that name victims where no plan does. Null: RandomEviction from the shared seed,
// LruEviction.
struct EvictionPolicies {
  std::unique_ptr<EvictionPolicy> recording;   // in a pass whose order is not known yet
  std::unique_ptr<EvictionPolicy> left_order;  // in a pass that has left its known order
};

struct CacheSetup {  // all pointers must outlive the cache
  const ChunkLayout* layout = nullptr;
  Rank rank = 0;
  client::ChunkService* service = nullptr;  // attached; its rCache memory is used from end to end
  // By data group; null where this rank is no member or the group has one rank.
  std::vector<Collective*> groups;
  const Clock* clock = nullptr;
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
  void Declare(PassKind kind, AccessSchedule schedule) {
    follower_.Declare(kind, std::move(schedule));
  }

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
  void TakeMoves(std::vector<Move>* out);
  // Moves transfers on. Never waits.
  Status Progress();
  // Waits until all operators of a device have ended; on the host returns immediately. Call it
  // before LibTorch waits for a result (a loss): its own waits poll nothing, and a lost peer would
  // not end them. Errors: as latched; results are garbage then.
  Status AwaitOperators() { return status_.ok() ? Latch(pipeline_.AwaitOperators()) : status_; }
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
  std::vector<ChunkId> SeparateChunks() const;
  // At the end of backward, for each of SeparateChunks: a zeroed block for its gradients; fill it,
  // then submit it. May wait.
  Result<SeparateBlock> BorrowBlock(ChunkId chunk);
  Status SubmitBorrowed(ChunkId chunk);
  // The backward of a micro-batch (0, 1, ...) has ended: parameters without a gradient get zeros,
  // and every chunk is handed in. Errors: kRcacheTooSmall (the pass went dry; names the smallest
  // size that works), and those of the server and the group.
  Status FinishBackward(uint32_t micro_batch);
  // Ends the training pass: waits until the server has answered every submission.
  Status FinishStep();

  // True once a pass went dry: no chunk has a place any more, what operators read is the caller's
  // choice, and gradients go nowhere.
  bool dry() const { return dry_; }
  // Call when a dry evaluation has ended: then go through the forward and backward of one
  // micro-batch, and FinishBackward reports what the order needs.
  void BeginDryTraining();

  // True when the present pass follows a known order.
  bool following() const { return follower_.following(); }
  // The present pass's plan; null while it records or has left the known order.
  const Plan* plan() const { return follower_.plan(); }
  const AccessSchedule& schedule(PassKind kind) const { return follower_.schedule(kind); }
  uint64_t blocks() const { return table_.blocks(); }
  // The smallest --rcache for the order followed or recorded so far, in bytes.
  uint64_t SmallestRcacheBytes() const;
  CacheCounters counters() const;

 private:
  struct Entry {              // state of a chunk
    uint32_t pins = 0;        // operators that hold it
    bool mapped = false;      // the caller was told where it is
    bool demanded = false;    // fetched because it was needed, not yet handed out
    bool prefetched = false;  // fetched ahead, not yet handed out
    bool multi_use = false;   // always in separate mode
    bool gradient = false;    // its place holds gradients: pinned until they are handed in
    bool submitted = false;   // handed in for this micro-batch
    uint32_t grads = 0;       // parameters whose gradient came in this micro-batch
  };

  ParameterCache(CacheSetup setup, Pipeline pipeline);

  Status Latch(Status status);
  Status NotInPass(const char* call);
  Status TooSmall(const std::string& reason);
  uint64_t BlocksNeeded() const { return std::max(dry_blocks_, follower_.BlocksNeeded()); }
  // The order has come to a moment: does what the plan wants there. The call that ends what began
  // here moves the transfers on.
  Status Enter(MomentKind kind, ChunkId subject);
  void RunStep(const PlanStep& step, bool ahead);
  void PrefetchAhead(uint64_t horizon);
  // Gives the chunk a place; the policy decides where nothing is planned.
  Status Place(ChunkId chunk);
  void GoDry();
  Status FinishDry();
  void StartFetch(ChunkId chunk, uint32_t uses_ahead);
  void Evict(ChunkId victim, ChunkId successor);
  void Unmap(ChunkId chunk);
  // Puts a mark behind the operators that used chunks since the last one.
  void MarkUses();
  // Waits until the chunk's parameters are there, tells the caller where, counts.
  Status HandOut(ChunkId chunk);
  // Waits until the chunk's place is there and nothing writes to it.
  Status WaitForPlace(ChunkId chunk, bool prefetched = false) {
    return Latch(pipeline_.Wait(table_.past(chunk).op, prefetched));
  }
  Status Demand(ChunkId chunk);
  void DropStale();

  // gradient_path.cpp
  bool InPlace(ChunkId chunk) const { return !separate_pass_ && !entries_[chunk].multi_use; }
  void KeepApart(ChunkId chunk);
  Status FrozenGradient(ParameterId parameter);
  Status GradientRead(ParameterId parameter);
  Status SecondGradient(ParameterId parameter);
  std::byte* AddressOf(ParameterId parameter) const;
  void Zero(std::byte* at, uint64_t bytes);
  void ZeroGaps(ChunkId chunk);
  Status TakeForGradients(ChunkId chunk);
  Status Submit(ChunkId chunk, bool enter);
  Status FinishChunk(ChunkId chunk);

  const CacheSetup setup_;
  const ChunkLayout& layout_;
  BlockTable table_;
  Pipeline pipeline_;
  PassFollower follower_;
  TensorStates states_;
  std::vector<Entry> entries_;      // by ChunkId
  std::vector<ChunkId> mine_;       // chunks that this rank trains, as a member of their group
  std::vector<ChunkId> pinned_;     // held by operators, ascending
  std::vector<bool> has_gradient_;  // by ParameterId, in this micro-batch
  // Chunks of operators that ended behind the last mark; they have places.
  std::vector<ChunkId> used_;
  std::vector<Move> moves_;
  Moment moment_;  // reused
  bool in_pass_ = false, training_ = false, separate_pass_ = false, has_version_ = false;
  bool dry_ = false;
  uint64_t dry_blocks_ = 0;  // what a dry evaluation needed
  Version version_ = 0;
  uint32_t micro_batch_ = 0;
  CacheCounters counters_;
  Status status_;
};

}  // namespace tidepool::trainer

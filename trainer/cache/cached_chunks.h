// CachedChunks: the chunks that are in the rCache, what holds each of them there, and their way in
// and out.
//
// One thread (the trainer's main thread). It decides nothing: CachePass says which chunk comes and
// which leaves for it, ChunkGradients which one is handed in. Transfers move on in Progress and in
// calls that wait.
// Invariants:
//  1. an eviction writes nothing, the server has the master copy (Elixir v1, section VII);
//  2. a place passes from chunk to chunk with its past: the last transfer and the mark behind the
//     last operators. The pipeline writes to it behind both;
//  3. the caller is told of every change of place, in order (TakeMoves).
// Errors are returned where they come, and kept by nobody here but the pipeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/cache/block_table.h"
#include "trainer/cache/pipeline.h"
#include "trainer/cache/pipeline_setup.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/layout/tensor_state.h"
#include "trainer/plan/traffic.h"

namespace tidepool::trainer {

// The chunk's parameters are now at `block`; null: they have no place.
struct Move {
  ChunkId chunk = 0;
  std::byte* block = nullptr;
};

// What an rCache has done since it was made.
struct CacheCounters {
  // Chunks that an operator needed: they had stayed since an earlier use, had been fetched
  // ahead for this one, or were fetched because it waited for them.
  uint64_t hits = 0, ahead = 0, misses = 0;
  uint64_t prefetches = 0;  // fetched ahead, also for gradients
  // Those of `prefetches` that were not there yet when an operator needed them. Where the CPU runs
  // ahead: those for which a look found the compute stream waiting, so a lower bound.
  uint64_t late_prefetches = 0;
  uint64_t evictions = 0;
  uint64_t submits = 0;                   // chunks whose gradients were handed in
  uint64_t deviations = 0;                // passes that left the recorded order
  uint64_t bytes_h2d = 0, bytes_d2h = 0;  // the sums of `traffic`
  std::vector<GroupTraffic> traffic;      // by data group
  // Time the CPU waited: for chunks, in operators and gradients; for the server, in FinishStep.
  uint64_t wait_ns = 0;
};

class CachedChunks {
 public:
  // The setup's rCache memory must have room for the resident chunks of its rank.
  explicit CachedChunks(PipelineSetup setup);

  const ChunkLayout& layout() const { return layout_; }
  // How many blocks there are for evictable chunks.
  uint64_t blocks() const { return table_.blocks(); }
  // True when the chunk has a place.
  bool has(ChunkId chunk) const { return table_.has(chunk); }
  // All chunks that have a place, ascending.
  std::vector<ChunkId> Placed() const { return table_.Placed(); }
  // Where the parameter, or its gradient, lies. Requires has(its chunk).
  std::byte* AddressOf(ParameterId parameter) const;
  TensorStates* states() { return &states_; }
  // All but deviations, which only the pass knows.
  CacheCounters counters() const;

  // A pass begins. `stale`: what is there is of an older version and leaves, but frozen chunks.
  void BeginPass(bool stale);

  // --- what holds a chunk ---
  // An operator holds these chunks. False when each was held already: the order of uses has nothing
  // new. Else operators on other chunks have ended, and get their mark.
  bool Pin(std::span<const ChunkId> chunks);
  // The operator has ended. Requires that each is pinned.
  void Unpin(std::span<const ChunkId> chunks);
  // Held by operators, ascending.
  const std::vector<ChunkId>& pinned() const { return pinned_; }
  // The chunk's place holds gradients until Submit.
  void HoldGradients(ChunkId chunk) { entries_[chunk].gradient = true; }
  bool holds_gradients(ChunkId chunk) const { return entries_[chunk].gradient; }
  // True when an operator or gradients hold a chunk.
  bool AnyHeld() const;

  // --- in ---
  bool HasRoomFor(ChunkId chunk) const { return table_.HasRoomFor(chunk); }
  // The chunk gets its own room or a free block. Requires HasRoomFor(chunk), !has(chunk).
  void Take(ChunkId chunk) { table_.Take(chunk); }
  // Chunks that may leave for another one, ascending.
  std::vector<ChunkId> Candidates() const;
  // The successor gets the victim's block. Requires that nothing holds the victim.
  void Evict(ChunkId victim, ChunkId successor);
  // The chunk's parameters come to its place. `ahead`: before an operator needs them.
  void Fetch(ChunkId chunk, const Wanted& wanted, bool ahead);
  // Waits until the chunk's parameters are there, tells the caller where, counts. Errors: those of
  // the server and the group.
  Status HandOut(ChunkId chunk);
  // Waits until nothing writes to the chunk's place, and takes it for gradients alone: zeroed, and
  // the parameters have no place any more. Errors: as HandOut.
  Status TakeForGradients(ChunkId chunk);
  // Elements of the chunk, of its place. On a device: behind what is in the compute stream.
  void Zero(ChunkId chunk, uint64_t element_begin, uint64_t element_end);

  // --- out ---
  // The gradients in the chunk's place go to the group and to the server; its block is free.
  void Submit(ChunkId chunk, Version version, uint32_t micro_batch);
  // Gradients that lie elsewhere in the rCache go to the server, and no block is freed. The place
  // is the server's until Await has returned.
  OpId SubmitSum(ChunkId chunk, std::byte* place, Version version);
  // Waits for a transfer. Errors: those of the server and the group.
  Status Await(OpId op) { return pipeline_.Wait(op, /*prefetched=*/false); }
  // Appends the changes of place since the last call to `out`, in order.
  void TakeMoves(std::vector<Move>* out);

  // Transfers and operators. Errors: those of the server and the group.
  Status Progress() { return pipeline_.Progress(); }
  Status AwaitTransfers() { return pipeline_.WaitAll(); }
  Status FinishTransfers() { return pipeline_.FinishPass(); }
  Status AwaitOperators() { return pipeline_.AwaitOperators(); }

 private:
  struct Entry {              // state of a chunk
    uint32_t pins = 0;        // operators that hold it
    bool mapped = false;      // the caller was told where it is
    bool demanded = false;    // fetched because it was needed, not yet handed out
    bool prefetched = false;  // fetched ahead, not yet handed out
    bool gradient = false;    // its place holds gradients: pinned until they are handed in
  };

  bool IsPinned(ChunkId chunk) const { return entries_[chunk].pins > 0; }
  // Puts a mark behind the operators that used chunks since the last one.
  void MarkUses();
  void Unmap(ChunkId chunk);
  void DropStale();

  const PipelineSetup setup_;
  const ChunkLayout& layout_;
  BlockTable table_;
  Pipeline pipeline_;
  TensorStates states_;
  std::vector<Entry> entries_;   // by ChunkId
  std::vector<ChunkId> pinned_;  // held by operators, ascending
  // Chunks of operators that ended behind the last mark; they have places.
  std::vector<ChunkId> used_;
  std::vector<Move> moves_;
  CacheCounters counters_;  // those that are counted here
};

}  // namespace tidepool::trainer

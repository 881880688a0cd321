// CachedChunks: the chunks in the rCache, what pins each of them there, and their transfers in and
// out.
//
// One thread (the trainer's main thread). It makes no decisions: CachePass chooses which chunk
// comes and which one is evicted for it, ChunkGradients which one is submitted. Transfers progress
// in Progress and in blocking calls.
// Invariants:
//  1. an eviction writes nothing: the server has the master copy (Elixir v1, section VII);
//  2. a place passes from chunk to chunk with its past: the last transfer and the mark after the
//     last operators. The pipeline writes to it after both;
//  3. the caller learns of every change of place, in order (TakeMoves).
// Errors are returned where they occur; only the pipeline keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

// Counts since the rCache was made.
struct CacheCounters {
  // Chunks that an operator needed: still there from an earlier use, prefetched for this one, or
  // fetched while it waited.
  uint64_t hits = 0, ahead = 0, misses = 0;
  uint64_t prefetches = 0;  // including blocks for gradients
  // Those of `prefetches` that had not arrived when an operator needed them. If the CPU runs ahead:
  // those for which a check found the compute stream waiting, so a lower bound.
  uint64_t late_prefetches = 0;
  uint64_t evictions = 0;
  uint64_t unforeseen = 0;                // of `evictions`: chosen without a plan
  uint64_t zeros = 0;                     // gradients of zeros that were submitted without any
  uint64_t submits = 0;                   // chunks whose gradients were submitted
  uint64_t deviations = 0;                // passes that left the recorded order
  uint64_t bytes_h2d = 0, bytes_d2h = 0;  // totals of `traffic`
  std::vector<GroupTraffic> traffic;      // by data group
  uint64_t memory_most = 0;               // with a memory limit: the most bytes in use
  // Time the CPU waited: for chunks, in operators and gradients; for the server, in FinishStep.
  uint64_t wait_ns = 0;
};

class CachedChunks {
 public:
  // The setup's rCache memory must have room for the resident chunks of its rank.
  explicit CachedChunks(PipelineSetup setup);

  const ChunkLayout& layout() const { return layout_; }
  // Number of blocks for evictable chunks.
  uint64_t blocks() const { return table_.blocks(); }
  // True when the chunk has a place.
  bool has(ChunkId chunk) const { return table_.has(chunk); }
  // All chunks that have a place, ascending.
  std::vector<ChunkId> Placed() const { return table_.Placed(); }
  // Address of the parameter, or of its gradient. Requires has(its chunk).
  std::byte* AddressOf(ParameterId parameter) const;
  TensorStates* states() { return &states_; }
  // All but `unforeseen`, `deviations` and `memory_most`, which only the pass knows.
  CacheCounters counters() const;

  // Begins a pass. `stale`: present chunks, except frozen ones, are outdated and are dropped.
  void BeginPass(bool stale);

  // --- pinning ---
  // Pins these chunks for an operator. False: each was pinned already, so the order of uses has
  // nothing new. Otherwise operators on other chunks have ended, and get their mark.
  bool Pin(std::span<const ChunkId> chunks);
  // Unpins after the operator. Requires that each is pinned.
  void Unpin(std::span<const ChunkId> chunks);
  // Pinned by operators, ascending.
  const std::vector<ChunkId>& pinned() const { return pinned_; }
  // Marks that the chunk's place holds gradients until Submit.
  void HoldGradients(ChunkId chunk) { entries_[chunk].gradient = true; }
  bool holds_gradients(ChunkId chunk) const { return entries_[chunk].gradient; }
  // True when an operator or gradients pin a chunk.
  bool AnyHeld() const;

  // --- in ---
  bool HasRoomFor(ChunkId chunk) const { return table_.HasRoomFor(chunk); }
  // Gives the chunk its own space or a free block. Requires HasRoomFor(chunk), !has(chunk).
  void Take(ChunkId chunk) { table_.Take(chunk); }
  // Chunks that may be evicted, ascending.
  std::vector<ChunkId> Candidates() const;
  // Gives the victim's block to the successor. Requires that nothing pins the victim.
  void Evict(ChunkId victim, ChunkId successor);
  // Frees the victim's block. Requires that nothing pins the victim.
  void Shed(ChunkId victim);
  // Chunks in blocks.
  uint64_t blocks_in_use() const { return table_.cached().size(); }
  // Blocks whose memory this process has not given back since their last use.
  uint64_t blocks_with_memory() const { return table_.with_memory(); }
  // Gives the memory of free blocks back to the system, by `release`, until no more than `most`
  // blocks have some, or no free one does. Waits for their transfers. Stops where `release` fails,
  // or a wait: the next one returns that error again.
  using ReleaseMemory = std::function<bool(std::byte* block, uint64_t bytes)>;
  void Trim(uint64_t most, const ReleaseMemory& release);
  // Starts the fetch of the chunk's parameters to its place. `ahead`: ahead of an operator's need.
  void Fetch(ChunkId chunk, const Wanted& wanted, bool ahead);
  // The chunk has a place, and its fetch is put off until it is known to be used.
  void LeaveOut(ChunkId chunk) { entries_[chunk].left_out = true; }
  bool is_left_out(ChunkId chunk) const { return entries_[chunk].left_out; }
  // Waits until the chunk's parameters are there, records the move, counts. Errors: those of the
  // server and the group.
  Status HandOut(ChunkId chunk);
  // Waits until nothing writes to the chunk's place, and takes it for gradients only: zeroed, and
  // the parameters have no place any more. Errors: as HandOut.
  Status TakeForGradients(ChunkId chunk);
  // Zeroes elements of the chunk in its place. On a device: after the work in the compute stream.
  void Zero(ChunkId chunk, uint64_t element_begin, uint64_t element_end);

  // --- out ---
  // Sends the gradients in the chunk's place to the group and the server; frees its block.
  void Submit(ChunkId chunk, Version version, uint32_t micro_batch);
  // The chunk has no gradients on any rank of its group: tells the server, which takes them as
  // zeros, and frees the block. A server of an earlier release, or one that copies by a GPU, gets
  // the zeros themselves; this waits for the block then. Errors: as HandOut.
  Status SubmitZeros(ChunkId chunk, Version version, uint32_t micro_batch);
  // True if the chunk's block may be given to another one.
  bool MayEvict(ChunkId chunk) const {
    return table_.has(chunk) && !IsPinned(chunk) && !entries_[chunk].gradient;
  }
  // Sends gradients elsewhere in the rCache to the server; frees no block. The place is the
  // server's until Await has returned.
  OpId SubmitSum(ChunkId chunk, std::byte* place, Version version);
  // Waits for a transfer. Errors: those of the server and the group.
  Status Await(OpId op) { return pipeline_.Wait(op, /*prefetched=*/false); }
  // Appends the changes of place since the last call to `out`, in order.
  void TakeMoves(std::vector<Move>* out);

  // Progress of transfers, and waits. Errors: those of the server and the group.
  Status Progress() { return pipeline_.Progress(); }
  Status AwaitTransfers() { return pipeline_.WaitAll(); }
  Status FinishTransfers() { return pipeline_.FinishPass(); }
  Status AwaitOperators() { return pipeline_.AwaitOperators(); }

 private:
  struct Entry {              // state of a chunk
    uint32_t pins = 0;        // operators that hold it
    bool mapped = false;      // the caller knows its place
    bool demanded = false;    // fetched on demand, not handed out yet
    bool prefetched = false;  // prefetched, not handed out yet
    bool left_out = false;    // has a place, but was not fetched
    bool gradient = false;    // its place holds gradients: pinned until submitted
  };

  bool IsPinned(ChunkId chunk) const { return entries_[chunk].pins > 0; }
  // Records a mark after the operators that used chunks since the last one.
  void MarkUses();
  void Unmap(ChunkId chunk);
  void DropStale();

  const PipelineSetup setup_;
  const ChunkLayout& layout_;
  BlockTable table_;
  Pipeline pipeline_;
  TensorStates states_;
  std::vector<Entry> entries_;   // by ChunkId
  std::vector<ChunkId> pinned_;  // pinned by operators, ascending
  // Chunks of operators that ended after the last mark; they have places.
  std::vector<ChunkId> used_;
  std::vector<Move> moves_;
  CacheCounters counters_;  // the fields counted here
};

}  // namespace tidepool::trainer

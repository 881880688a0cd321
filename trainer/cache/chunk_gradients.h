// ChunkGradients: the gradients of a micro-batch, from a parameter's gradient to its chunk's
// submission: which have come, where they lie, and which chunks are complete.
//
// One thread (the trainer's main thread). A chunk's gradients lie over its parameters, in its block
// (Elixir v2, section 4.1). In separate mode they stay with the caller until the end of backward:
// in a step that records, where the pass says so, and ever after for a chunk whose parameters are
// used again after a gradient came, or get several gradients.
// Invariants:
//  1. a block that holds gradients is not given up before they are in flight, and not written
//     before the server has answered;
//  2. whole blocks are added over ranks: alignment gaps, and parameters without a gradient, are
//     zeros;
//  3. a frozen chunk has no gradient and is never handed in.
// The caller makes no call after one that has returned an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/cache/cache_pass.h"
#include "trainer/cache/cached_chunks.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

// The place of one parameter's gradient in a borrowed block.
struct SeparatePlace {
  ParameterId parameter = 0;
  std::byte* data = nullptr;  // where its gradient goes
};
// A block that is borrowed for the gradients of a chunk in separate mode.
struct SeparateBlock {
  std::vector<SeparatePlace> places;  // all parameters of the chunk; zero-filled
};

class ChunkGradients {
 public:
  // Both must outlive the object; `rank` is their rank.
  ChunkGradients(CachedChunks* chunks, CachePass* pass, Rank rank);

  // A pass begins, with its first micro-batch.
  void BeginPass() { micro_batch_ = 0; }
  uint32_t micro_batch() const { return micro_batch_; }

  // As the calls of the same names of ParameterCache, within a training pass.
  Status BeginUse(std::span<const ParameterId> parameters);
  Result<std::byte*> Place(ParameterId parameter);
  Status Done(ParameterId parameter);
  std::vector<ChunkId> SeparateChunks() const;
  Result<SeparateBlock> Borrow(ChunkId chunk);
  Status SubmitBorrowed(ChunkId chunk);
  // The backward of the micro-batch has ended: every chunk is handed in, and the next micro-batch
  // begins. Errors: kRcacheTooSmall (the pass became trace-only), those of the server and the
  // group.
  Status FinishBackward();

 private:
  struct Entry {             // of a chunk
    bool multi_use = false;  // always in separate mode
    bool submitted = false;  // handed in for this micro-batch
    uint32_t gradients = 0;  // parameters whose gradient came in this micro-batch
  };

  const ParameterPlace& PlaceOf(ParameterId parameter) const {
    return layout_.parameters[parameter];
  }
  bool InPlace(ChunkId chunk) const { return !pass_->separate() && !entries_[chunk].multi_use; }
  // Some gradients of the chunk came, and not all.
  bool IsPartial(ChunkId chunk) const;
  void KeepApart(ChunkId chunk);
  // kTensorStateIllegal, with the name of the parameter between two parts of a sentence.
  Status Illegal(ParameterId parameter, const char* before, const char* after) const;
  // The same of a parameter that the model uses at several places.
  Status UsedAgain(ParameterId parameter, const char* before, const char* after) const;
  // A place for gradients alone, zeroed. The pass may become trace-only.
  Status TakePlace(ChunkId chunk);
  void ZeroGaps(ChunkId chunk);
  // `enter`: the order of the pass has this moment.
  Status Submit(ChunkId chunk, bool enter);
  Status FinishChunk(ChunkId chunk);
  Status FinishTraceOnly();

  CachedChunks* const chunks_;
  CachePass* const pass_;
  const ChunkLayout& layout_;
  std::vector<Entry> entries_;      // by ChunkId
  std::vector<ChunkId> mine_;       // chunks that this rank trains, as a member of their group
  std::vector<bool> has_gradient_;  // by ParameterId, in this micro-batch
  uint32_t micro_batch_ = 0;
};

}  // namespace tidepool::trainer

// ChunkGradients: the gradients of a micro-batch, from the arrival of a parameter's gradient to its
// chunk's submission: which have arrived, where they are, and which chunks are complete.
//
// One thread (the trainer's main thread). A chunk's gradients overwrite its parameters in its block
// (Elixir v2, section 4.1). In separate mode the caller keeps them until the end of backward: in a
// recording step if the pass says so, and from then on for a chunk whose parameters are used again
// after a gradient has arrived, or get several gradients.
// Invariants:
//  1. a block that holds gradients is not freed before they are in flight, and not written before
//     the server has answered;
//  2. whole blocks are summed over ranks: alignment gaps, and parameters without a gradient, are
//     zeros;
//  3. a frozen chunk has no gradient and is never submitted.
// After a call has returned an error, no further call may be made.
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
  std::byte* data = nullptr;  // destination of its gradient
};
// A block borrowed for the gradients of a chunk in separate mode.
struct SeparateBlock {
  std::vector<SeparatePlace> places;  // all parameters of the chunk; zero-filled
};

class ChunkGradients {
 public:
  // Both must outlive the object; `rank` is their rank.
  ChunkGradients(CachedChunks* chunks, CachePass* pass, Rank rank);

  // Begins a pass, with its first micro-batch.
  void BeginPass() { micro_batch_ = 0; }
  uint32_t micro_batch() const { return micro_batch_; }

  // Like the ParameterCache calls of the same names, within a training pass.
  Status BeginUse(std::span<const ParameterId> parameters);
  Result<std::byte*> Place(ParameterId parameter);
  Status Done(ParameterId parameter);
  std::vector<ChunkId> SeparateChunks() const;
  Result<SeparateBlock> Borrow(ChunkId chunk);
  Status SubmitBorrowed(ChunkId chunk);
  // Passes by the moments of a unit that is left out, as long as the order continues with them; its
  // chunks' gradients are submitted as zeros at their places.
  Status PassBy(uint32_t unit);
  // Ends the backward of the micro-batch: submits every chunk, and begins the next micro-batch.
  // Errors: kRcacheTooSmall (the pass became trace-only), those of the server and the group.
  Status FinishBackward();

 private:
  struct Entry {             // of a chunk
    bool multi_use = false;  // permanently in separate mode
    bool submitted = false;  // in this micro-batch
    uint32_t gradients = 0;  // parameters whose gradient has arrived in this micro-batch
  };

  const ParameterPlace& PlaceOf(ParameterId parameter) const {
    return layout_.parameters[parameter];
  }
  bool InPlace(ChunkId chunk) const { return !pass_->separate() && !entries_[chunk].multi_use; }
  // True if some gradients of the chunk have arrived, but not all.
  bool IsPartial(ChunkId chunk) const;
  void KeepApart(ChunkId chunk);
  // kTensorStateIllegal; the parameter's name goes between the two parts of the sentence.
  Status Illegal(ParameterId parameter, const char* before, const char* after) const;
  // The same for a parameter that the model uses more than once.
  Status UsedAgain(ParameterId parameter, const char* before, const char* after) const;
  // Takes a place for gradients only, zeroed. The pass may become trace-only.
  Status TakePlace(ChunkId chunk);
  void ZeroGaps(ChunkId chunk);
  // `enter`: the pass's order has this moment.
  Status Submit(ChunkId chunk, bool enter);
  Status SubmitZeros(ChunkId chunk);
  Status FinishChunk(ChunkId chunk);
  Status FinishTraceOnly();

  CachedChunks* const chunks_;
  CachePass* const pass_;
  const ChunkLayout& layout_;
  std::vector<Entry> entries_;      // by ChunkId
  std::vector<ChunkId> mine_;       // chunks that this rank trains, as a group member
  std::vector<bool> has_gradient_;  // by ParameterId, in this micro-batch
  uint32_t micro_batch_ = 0;
};

}  // namespace tidepool::trainer

// BatchCursor: the order in which a run reads its tokens, as a single number that can be saved and
// restored: how many sequences were read.
//
// One thread per object. The sequence with a given number is a pure function of (source, seed,
// tokens): the same on every rank, for any number of ranks and any batch size; of the batch at a
// position, rank r of w reads the sequences from position + r * sequences / w on. Shuffled order:
// the source is cut into windows of `tokens` tokens, at an offset that changes with the epoch; each
// epoch reads every window once, in its own order. Unshuffled (validation): windows in order from
// the start, repeatedly.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "trainer/data/token_source.h"

namespace tidepool::trainer {

// The size of a batch, and this rank's part of it.
struct BatchShape {
  uint64_t sequences = 8;  // per global batch; divisible by world
  uint64_t tokens = 128;   // per sequence
  uint32_t rank = 0, world = 1;
  uint64_t seed = 1;
  bool shuffled = true;
};

// This rank's part of one global batch.
struct Batch {
  uint64_t sequences = 0, tokens = 0;
  // [sequences][tokens]; targets[i] is the token after inputs[i].
  std::vector<int64_t> inputs, targets;
};

// Checks that the ranks can share the batch. Errors: kUsageError.
Status CheckBatch(const BatchShape& shape);

class BatchCursor {
 public:
  // Errors: kUsageError (sequences not divisible by world), kDataBad (the source is shorter than
  // one sequence plus its last target).
  static Result<BatchCursor> Make(TokenSource source, const BatchShape& shape);

  // Returns the batch at position(), and advances by its sequences. Errors: those of
  // TokenSource::Read; the position then stays.
  Result<Batch> Next();

  // Number of sequences read by all ranks so far.
  uint64_t position() const { return position_; }
  void Seek(uint64_t position) { position_ = position; }

  // Global batches in one epoch, rounded up.
  uint64_t batches_per_epoch() const {
    return (windows_ + shape_.sequences - 1) / shape_.sequences;
  }

 private:
  BatchCursor(TokenSource source, const BatchShape& shape);
  // First token of the global sequence with this number.
  uint64_t StartOf(uint64_t sequence) const;

  TokenSource source_;
  BatchShape shape_;
  uint64_t windows_ = 1;    // of one epoch
  uint64_t phase_max_ = 0;  // a phase up to this leaves room for all windows
  uint64_t position_ = 0;
};

}  // namespace tidepool::trainer

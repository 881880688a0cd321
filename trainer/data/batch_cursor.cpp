#include "trainer/data/batch_cursor.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/random.h"

namespace tidepool::trainer {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  return SplitMix64(SplitMix64(a).Next() ^ b).Next();
}

// A bijection of [0, count) selected by `key`: a four-round Feistel network on the next even number
// of bits, iterated until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002). It needs no table, so any position can be computed alone.
uint64_t Permuted(uint64_t index, uint64_t count, uint64_t key) {
  const int half_bits = std::max(1, (static_cast<int>(std::bit_width(count - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;

  do {
    uint64_t left = index >> half_bits, right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      left ^= Mix(key + round, right) & mask;
      std::swap(left, right);
    }
    index = left << half_bits | right;
  } while (index >= count);
  return index;
}

}  // namespace

Status CheckBatch(const BatchShape& shape) {
  if (shape.world > 0 && shape.sequences > 0 && shape.tokens > 0 &&
      shape.sequences % shape.world == 0)
    return {};
  return Status(ErrorId::kUsageError, "a batch of " + std::to_string(shape.sequences) +
                                          " sequences cannot be shared equally by " +
                                          std::to_string(shape.world) + " ranks")
      .Where("--batch " + std::to_string(shape.sequences))
      .Fix("give a --batch that is a multiple of the number of ranks");
}

Result<BatchCursor> BatchCursor::Make(TokenSource source, const BatchShape& shape) {
  TP_RETURN_IF_ERROR(CheckBatch(shape));
  if (source.size() <= shape.tokens) {
    return Status(ErrorId::kDataBad, "the data has " + std::to_string(source.size()) +
                                         " tokens, but one sequence and its last target take " +
                                         std::to_string(shape.tokens + 1))
        .Fix("give more text, or a smaller --context");
  }
  return BatchCursor(std::move(source), shape);
}

BatchCursor::BatchCursor(TokenSource source, const BatchShape& shape)
    : source_(std::move(source)), shape_(shape) {
  const uint64_t usable = source_.size() - 1;  // the last token is only a target
  // Shuffled order reserves up to one window for the phase, if there is more than one.
  windows_ = shape_.shuffled ? std::max<uint64_t>(1, (usable - shape_.tokens + 1) / shape_.tokens)
                             : usable / shape_.tokens;
  phase_max_ = shape_.shuffled ? std::min(usable - windows_ * shape_.tokens, shape_.tokens - 1) : 0;
}

uint64_t BatchCursor::StartOf(uint64_t sequence) const {
  const uint64_t epoch = sequence / windows_, index = sequence % windows_;
  if (!shape_.shuffled) return index * shape_.tokens;
  const uint64_t key = Mix(shape_.seed, epoch);
  return Permuted(index, windows_, key) * shape_.tokens + SplitMix64(key).Below(phase_max_ + 1);
}

Result<Batch> BatchCursor::Next() {
  Batch batch{.sequences = shape_.sequences / shape_.world,
              .tokens = shape_.tokens,
              .inputs = {},
              .targets = {}};

  std::vector<int64_t> window(shape_.tokens + 1);
  const uint64_t first = position_ + shape_.rank * batch.sequences;
  for (uint64_t i = 0; i < batch.sequences; ++i) {
    TP_RETURN_IF_ERROR(source_.Read(StartOf(first + i), window));
    batch.inputs.insert(batch.inputs.end(), window.begin(), window.end() - 1);
    batch.targets.insert(batch.targets.end(), window.begin() + 1, window.end());
  }

  position_ += shape_.sequences;
  return batch;
}

}  // namespace tidepool::trainer

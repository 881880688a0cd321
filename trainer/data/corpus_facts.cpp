#include "trainer/data/corpus_facts.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/planted.h"
#include "base/random.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

// Not cryptographic: it distinguishes changed data.
class Hash {
 public:
  explicit Hash(uint64_t seed) { Mix(seed); }

  void Update(std::span<const std::byte> bytes) {
    Mix(bytes.size());
    for (; bytes.size() >= sizeof(uint64_t); bytes = bytes.subspan(sizeof(uint64_t)))
      Mix(Word(bytes.first(sizeof(uint64_t))));
    if (!bytes.empty()) Mix(Word(bytes));
  }
  uint64_t value() const { return value_; }

 private:
  static uint64_t Word(std::span<const std::byte> bytes) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), bytes.size());
    return word;
  }
  void Mix(uint64_t word) { value_ = SplitMix64(value_ ^ word).Next(); }

  uint64_t value_ = 0;
};

// The number of the nth piece read.
uint64_t PieceAt(uint64_t n, uint64_t read, uint64_t pieces) {
  if (read == pieces || read <= 1) return n;
  return (pieces - 1) / (read - 1) * n + (pieces - 1) % (read - 1) * n / (read - 1);
}

}  // namespace

Result<TokenFacts> LookThrough(const TokenSource& source, const LookOptions& options) {
  Hash hash(source.size());
  if (const std::string_view text = source.text(); !text.empty()) {
    hash.Update(std::as_bytes(std::span(text)));
    return TokenFacts{source.size(), hash.value()};
  }

  const uint64_t pieces = DivideUp(source.size(), options.piece_tokens),
                 read = std::min(pieces, options.pieces_max);
  std::vector<int64_t> tokens(std::min(source.size(), options.piece_tokens));

  for (uint64_t n = 0; n < read; ++n) {
    const uint64_t begin = PieceAt(n, read, pieces) * options.piece_tokens;
    const std::span<int64_t> piece =
        std::span(tokens).first(std::min(options.piece_tokens, source.size() - begin));
    TP_RETURN_IF_ERROR(source.Read(begin, piece));
    hash.Update(std::as_bytes(piece));
    if (TP_PLANTED("data.first_piece_only")) break;
  }

  return TokenFacts{source.size(), hash.value()};
}

Result<CorpusFacts> LookThrough(const Corpus& corpus) {
  CorpusFacts facts;
  TP_ASSIGN_OR_RETURN(facts.train, LookThrough(corpus.train));
  TP_ASSIGN_OR_RETURN(facts.held_out, LookThrough(corpus.validation));
  return facts;
}

}  // namespace tidepool::trainer

// LookThrough: the fingerprint of a corpus, and whether a model can read it, in one pass over its
// tokens.
//
// Any thread.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "trainer/data/corpus.h"
#include "trainer/data/token_source.h"

namespace tidepool::trainer {

// Results of a pass over tokens.
struct TokenFacts {
  uint64_t tokens = 0;
  // Hash of the tokens read and of the total number; depends on their order.
  uint64_t hash = 0;
  friend bool operator==(const TokenFacts&, const TokenFacts&) = default;
};

// The facts of both parts.
struct CorpusFacts {
  TokenFacts train, held_out;
};

// How much of a token file is read: up to this many pieces, evenly spread, including the first and
// the last: 256 Mi tokens, about a second. Text is read completely.
struct LookOptions {
  uint64_t piece_tokens = 64 * 1024;
  uint64_t pieces_max = 4096;
};

// Errors: kFileUnreadable, kDataBad (an id beyond the vocabulary; names file and position).
Result<TokenFacts> LookThrough(const TokenSource& source, const LookOptions& options = {});
Result<CorpusFacts> LookThrough(const Corpus& corpus);

}  // namespace tidepool::trainer

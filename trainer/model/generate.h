// Generate: lets a model continue a text.
//
// The model's thread. Deterministic: same weights, prompt and options give the same tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "trainer/model/gpt.h"

namespace tidepool::trainer {

// How to continue the text.
struct GenerateOptions {
  uint64_t tokens = 200;     // how many to add
  float temperature = 0.8F;  // 0: always the most likely token
  uint32_t top_k = 0;        // choose among this many most likely tokens; 0: all
  uint64_t seed = 1;
};

// Called with each chosen token; false: stop.
using TokenSink = std::function<bool(int64_t)>;

// Returns the added tokens. Keeps keys and values of seen tokens, so that each token costs one
// position. When prompt and answer outgrow the context, the model continues with its latest half,
// so it sees between half and all of its context. Errors: kUsageError (empty prompt, a token id
// beyond the vocabulary, negative temperature), kLibraryFailed (LibTorch threw).
Result<std::vector<int64_t>> Generate(Gpt* model, const std::vector<int64_t>& prompt,
                                      const GenerateOptions& options, const TokenSink& sink = {});

}  // namespace tidepool::trainer

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

// How the text goes on.
struct GenerateOptions {
  uint64_t tokens = 200;     // how many to add
  float temperature = 0.8F;  // 0: always the likeliest token
  uint32_t top_k = 0;        // choose among so many likeliest tokens; 0: among all
  uint64_t seed = 1;
};

// Called with each token as it is chosen; false: no more are wanted.
using TokenSink = std::function<bool(int64_t)>;

// The added tokens. Keys and values of what was seen are kept, so that each token costs one
// position. When prompt and answer outgrow the context, the model goes on with the latest half of
// it, and so sees between a half and the whole of its context.
// Errors: kUsageError (empty prompt, a token id beyond the vocabulary, negative temperature),
// kLibraryFailed (LibTorch threw).
Result<std::vector<int64_t>> Generate(Gpt* model, const std::vector<int64_t>& prompt,
                                      const GenerateOptions& options, const TokenSink& sink = {});

}  // namespace tidepool::trainer

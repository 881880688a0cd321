// Generate: lets a model continue a text.
//
// The model's thread. Deterministic: same weights, prompt and options give the same tokens.
#pragma once

#include <cstdint>
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

// The added tokens. When prompt and answer outgrow the context, the model sees the latest part.
// Errors: kUsageError (empty prompt, a token id beyond the vocabulary, negative temperature),
// kLibraryFailed (LibTorch threw).
Result<std::vector<int64_t>> Generate(Gpt* model, const std::vector<int64_t>& prompt,
                                      const GenerateOptions& options);

}  // namespace tidepool::trainer

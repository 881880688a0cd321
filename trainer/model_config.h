// config.json beside saved weights: the model's shape, so that `trainer sample DIR` needs no flags. Keys are those of Hugging Face's GPT-2.
//
// Any thread. The one door to Boost.JSON in the trainer is model_config.cpp.
#pragma once

#include <string>

#include "base/status.h"
#include "trainer/model/gpt_shape.h"

namespace tidepool::trainer {

struct ModelConfig {
  GptShape shape;
  bool bytes = true;  // tokens are bytes of text
};

// Errors: kFileWriteFailed.
Status WriteModelConfig(const std::string& directory, const ModelConfig& config);
// Errors: kFileUnreadable, kDataBad.
Result<ModelConfig> ReadModelConfig(const std::string& directory);

}  // namespace tidepool::trainer

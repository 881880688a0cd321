// config.json beside saved weights: the model's shape, so that `trainer sample DIR` needs no flags.
// Keys are those of Hugging Face's GPT-2. Beside adapters also what they are and where their base
// was.
//
// Any thread. The one door to Boost.JSON in the trainer is model_config.cpp.
#pragma once

#include <string>

#include "base/status.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/model/lora.h"

namespace tidepool::trainer {

// What the file says.
struct ModelConfig {
  GptShape shape;
  bool bytes = true;  // tokens are bytes of text
  LoraShape lora;     // on: the directory holds adapters alone
  std::string base;   // of adapters: where the file of their base was
};

// Errors: kFileWriteFailed.
Status WriteModelConfig(const std::string& directory, const ModelConfig& config);
// Errors: kFileUnreadable, kDataBad.
Result<ModelConfig> ReadModelConfig(const std::string& directory);

}  // namespace tidepool::trainer

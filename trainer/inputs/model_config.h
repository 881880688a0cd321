// config.json beside saved weights: the model's shape, so that `trainer sample DIR` and `trainer
// run --from DIR` need no flags. Keys are those of Hugging Face's GPT-2 or Llama. Beside adapters
// it also describes them and names their base.
//
// Any thread. The one door to Boost.JSON in the trainer is model_config.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/model/lora.h"

namespace tidepool::trainer {

// The writer of the weights: names, and the orientation of linear layers, differ
// (trainer/inputs/saved_model.h).
enum class WeightNames : uint8_t { kOurs, kHuggingFace };

// The content of the file.
struct ModelConfig {
  GptShape shape;
  bool bytes = true;                       // tokens are bytes of text
  LoraShape lora;                          // on: the directory holds only adapters
  std::string base;                        // for adapters: path of their base's file
  WeightNames names = WeightNames::kOurs;  // of the weights beside it
};

// A model of this vocabulary reads text byte by byte.
inline constexpr uint64_t kByteVocab = 256;

// Errors: kFileWriteFailed.
Status WriteModelConfig(const std::string& directory, const ModelConfig& config);
// Errors: kFileUnreadable; kDataBad (also if the file describes a model that our GPT does not
// compute: its type, its activation function, biases of a Llama, ...).
Result<ModelConfig> ReadModelConfig(const std::string& directory);
// Writes the config.json of a GPT2LMHeadModel or a LlamaForCausalLM with weights in `dtype`.
// Errors: kFileWriteFailed.
Status WriteHuggingFaceConfig(const std::string& directory, const ModelConfig& config, DType dtype);
// The unique file names in model.safetensors.index.json, sorted: plain names in the folder of the
// index. Errors: kFileUnreadable, kDataBad.
Result<std::vector<std::string>> ReadWeightIndex(const std::string& path);

}  // namespace tidepool::trainer

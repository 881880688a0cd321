// config.json beside saved weights: the model's shape, so that `trainer sample DIR` and `trainer
// run --from DIR` need no flags. Keys are those of Hugging Face's GPT-2 or Llama. Beside adapters
// also what they are and where their base was.
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

// Who wrote the weights: names, and the orientation of linear layers, differ
// (trainer/inputs/saved_model.h).
enum class WeightNames : uint8_t { kOurs, kHuggingFace };

// What the file says.
struct ModelConfig {
  GptShape shape;
  bool bytes = true;                       // tokens are bytes of text
  LoraShape lora;                          // on: the directory holds adapters alone
  std::string base;                        // of adapters: where the file of their base was
  WeightNames names = WeightNames::kOurs;  // of the weights beside it
};

// A model of this vocabulary reads text byte by byte.
inline constexpr uint64_t kByteVocab = 256;

// Errors: kFileWriteFailed.
Status WriteModelConfig(const std::string& directory, const ModelConfig& config);
// Errors: kFileUnreadable; kDataBad (also where the file describes another model than our GPT
// computes: its type, its activation function, biases of a Llama, ...).
Result<ModelConfig> ReadModelConfig(const std::string& directory);
// config.json of a GPT2LMHeadModel or a LlamaForCausalLM whose weights are in `dtype`. Errors:
// kFileWriteFailed.
Status WriteHuggingFaceConfig(const std::string& directory, const ModelConfig& config, DType dtype);
// The files that model.safetensors.index.json names, each once, in order of their names: plain
// names in the folder of the index. Errors: kFileUnreadable, kDataBad.
Result<std::vector<std::string>> ReadWeightIndex(const std::string& path);

}  // namespace tidepool::trainer

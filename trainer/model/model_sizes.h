// GptShape: the sizes of a generative transformer of GPT-2's or Llama's form.
//
// Any thread; values.
#pragma once

#include <cstdint>
#include <string>

namespace tidepool::trainer {

// GptParameters()'s values of ParameterNote::optimizer_group.
inline constexpr uint32_t kDecayGroup = 0;    // matrices
inline constexpr uint32_t kNoDecayGroup = 1;  // biases and LayerNorms

// Rotary frequencies that are stretched for texts longer than those of the first training, as
// Llama 3.1 has them ("llama3" in transformers).
struct RotaryStretch {
  double factor = 0;              // slow frequencies are divided by it; 0: none are
  double low = 1, high = 4;       // waves longer than context / low are slow, shorter than
  uint32_t first_context = 8192;  // context / high fast; between the two it goes over
};

// What Llama's form has beside the sizes that all models have.
struct LlamaSizes {
  uint32_t kv_heads = 0;   // of keys and values; divides heads
  uint32_t head_size = 0;  // D, even; heads * head_size need not be hidden
  uint32_t mlp = 0;        // width of the MLP
  bool tied = false;       // the output head is the token embedding
  double rotary_base = 1e4, norm_epsilon = 1e-5;
  RotaryStretch stretch = {};
};

// Experts in place of the MLP of some blocks (trainer/model/experts.h).
struct MoeSizes {
  uint32_t every = 0;        // the last of each so many blocks has them
  uint32_t experts = 0;      // of each such block; 0: the model has none
  uint32_t top_k = 2;        // experts of a token
  uint32_t width = 0;        // of an expert's MLP
  uint32_t ep = 1;           // ranks that share the experts of a block; divides them
  float capacity = 0;        // tokens that an expert takes, as a multiple of their mean; 0: all
  float aux = 0.01F, z = 0;  // factors of the router's losses

  // Whether there are experts, and whether block `layer` has them.
  bool on() const { return experts > 0; }
  bool In(uint32_t layer) const { return on() && (layer + 1) % every == 0; }
  // Blocks with experts of a model of so many.
  uint32_t Blocks(uint32_t layers) const { return on() ? layers / every : 0; }
};

// Which of the ranks that share experts one is. Expert e belongs to rank e / (E / ranks).
struct ExpertPlace {
  uint32_t rank = 0, ranks = 1;
};

// The data group of an expert: 0, that of all ranks, where each rank has all of them; else 1 for
// those of the first of the ranks that share them, and so on.
inline uint32_t ExpertGroup(const MoeSizes& moe, uint32_t expert) {
  return moe.ep > 1 ? 1 + expert / (moe.experts / moe.ep) : 0;
}

// Whose blocks a model has. Its parameters have the names that Hugging Face gives them.
enum class ModelForm : uint8_t { kGpt2, kLlama };

struct GptShape {
  std::string name;
  uint32_t vocab = 0;    // V, number of token ids
  uint32_t context = 0;  // T, longest sequence
  uint32_t layers = 0;   // L
  uint32_t heads = 0;    // NH; in GPT-2's form it divides hidden
  uint32_t hidden = 0;   // C
  ModelForm form = ModelForm::kGpt2;
  LlamaSizes llama = {};  // of Llama's form
  MoeSizes moe = {};      // in Llama's form alone
};

}  // namespace tidepool::trainer

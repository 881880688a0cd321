// GptShape: the sizes of a generative transformer of GPT-2's or Llama's form.
//
// Any thread; values.
#pragma once

#include <cstdint>
#include <string>

namespace tidepool::trainer {

// Values of ParameterNote::optimizer_group in GptParameters().
inline constexpr uint32_t kDecayGroup = 0;    // matrices
inline constexpr uint32_t kNoDecayGroup = 1;  // biases and LayerNorms

// Rotary frequencies stretched for texts longer than in the first training, as in Llama 3.1
// ("llama3" in transformers).
struct RotaryStretch {
  double factor = 0;              // divisor of slow frequencies; 0: no stretching
  double low = 1, high = 4;       // wavelengths above context / low are slow, below
  uint32_t first_context = 8192;  // context / high fast; in between it interpolates
};

// Sizes that only Llama's form has.
struct LlamaSizes {
  uint32_t kv_heads = 0;   // number of key and value heads; divides heads
  uint32_t head_size = 0;  // D, even; heads * head_size may differ from hidden
  uint32_t mlp = 0;        // width of the MLP
  bool tied = false;       // the output head is the token embedding
  double rotary_base = 1e4, norm_epsilon = 1e-5;
  RotaryStretch stretch = {};
};

// Experts that replace the MLP of some blocks (trainer/model/experts.h).
struct MoeSizes {
  uint32_t every = 0;        // the last of every so many blocks has experts
  uint32_t experts = 0;      // per such block; 0: the model has none
  uint32_t top_k = 2;        // experts per token
  uint32_t width = 0;        // of an expert's MLP
  uint32_t ep = 1;           // ranks that share the experts of a block; divides their number
  float capacity = 0;        // tokens per expert, as a multiple of their mean; 0: no limit
  float aux = 0.01F, z = 0;  // factors of the router losses

  // Whether there are experts, and whether block `layer` has them.
  bool on() const { return experts > 0; }
  bool In(uint32_t layer) const { return on() && (layer + 1) % every == 0; }
  // Number of blocks with experts in a model of `layers` blocks.
  uint32_t Blocks(uint32_t layers) const { return on() ? layers / every : 0; }
};

// A rank's place among those that share experts. Expert e belongs to rank e / (E / ranks).
struct ExpertPlace {
  uint32_t rank = 0, ranks = 1;
  uint32_t first = 0;  // the first of them, of all ranks of the run
};

// The data group of an expert: 0, that of all ranks, if each rank has all experts; else 1 for those
// of the first sharing rank, and so on.
inline uint32_t ExpertGroup(const MoeSizes& moe, uint32_t expert) {
  return moe.ep > 1 ? 1 + expert / (moe.experts / moe.ep) : 0;
}

// The unit (ParameterNote::unit) of an expert of block `layer`.
inline uint32_t ExpertUnit(const MoeSizes& moe, uint32_t layer, uint32_t expert) {
  return 1 + layer * moe.experts + expert;
}

// The architecture of a model's blocks. Parameters have the names of Hugging Face.
enum class ModelForm : uint8_t { kGpt2, kLlama };

struct GptShape {
  std::string name;
  uint32_t vocab = 0;    // V, number of token ids
  uint32_t context = 0;  // T, longest sequence
  uint32_t layers = 0;   // L
  uint32_t heads = 0;    // NH; divides hidden in GPT-2's form
  uint32_t hidden = 0;   // C
  ModelForm form = ModelForm::kGpt2;
  LlamaSizes llama = {};  // in Llama's form
  MoeSizes moe = {};      // in Llama's form only
};

}  // namespace tidepool::trainer

// GptShape: the sizes of a generative transformer of GPT-2's or Llama's form.
//
// Any thread; values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// The experts of a block (trainer/model/experts.h), which replace its MLP or stand beside it.
struct MoeSizes {
  uint32_t every = 0;        // the last of every so many blocks has experts
  uint32_t experts = 0;      // per such block; 0: the model, or the block, has none
  uint32_t top_k = 2;        // experts per token
  uint32_t width = 0;        // of an expert's MLP
  uint32_t ep = 1;           // ranks that share the experts of a block; divides their number
  float capacity = 0;        // tokens per expert, as a multiple of their mean; 0: no limit
  float aux = 0.01F, z = 0;  // factors of the router losses
  // The block keeps its MLP, through which all tokens go; the results of both are added.
  bool residual = false;

  // True if the block has experts.
  bool on() const { return experts > 0; }
  friend bool operator==(const MoeSizes&, const MoeSizes&) = default;
};

// A rank's place among those that share experts. Expert e belongs to rank e / (E / ranks).
struct ExpertPlace {
  uint32_t rank = 0, ranks = 1;
  uint32_t first = 0;  // the first of them, of all ranks of the run
};

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
  MoeSizes moe = {};      // in Llama's form only; of all blocks with experts
  // By block, where they differ (trainer/model/moe/moe_layers.h); empty: as `moe` says.
  std::vector<MoeSizes> moe_layers = {};
  // The most elements of a tile of a block's linear layer (trainer/model/tiles/linear_tiles.h); 0:
  // layers are not cut. No property of saved models, which have whole layers or tiles of any size.
  uint64_t tile_elements = 0;
};

}  // namespace tidepool::trainer

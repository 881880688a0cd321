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
};

}  // namespace tidepool::trainer

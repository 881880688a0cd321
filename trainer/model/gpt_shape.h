// GptShape: the sizes of a GPT-2 style model, its presets, and the list of its parameters; known
// without LibTorch and without any weight.
//
// Any thread; values and pure functions.
// The model: token and position embeddings, `layers` blocks (LayerNorm, causal self-attention,
// LayerNorm, four-fold MLP with GELU, residual connections, biases), a final LayerNorm, and the
// token embedding again as output head.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {

struct GptShape {
  std::string name;
  uint32_t vocab = 0;    // V, number of token ids
  uint32_t context = 0;  // T, longest sequence
  uint32_t layers = 0;   // L
  uint32_t heads = 0;    // NH, divides hidden
  uint32_t hidden = 0;   // C
};

// From the smallest to the largest.
std::span<const GptShape> GptPresets();
// Errors: kUsageError (no such preset; the text lists those there are).
Result<GptShape> FindGptPreset(const std::string& name);
// Errors: kUsageError (a size is 0, or heads does not divide hidden).
Status CheckGptShape(const GptShape& shape);

// The epsilon of all layer norms.
inline constexpr double kGptNormEpsilon = 1e-5;

// GptParameters()'s values of ParameterNote::optimizer_group.
inline constexpr uint32_t kDecayGroup = 0;    // matrices
inline constexpr uint32_t kNoDecayGroup = 1;  // biases and LayerNorms

// All parameters in the order of their use in forward, named as the modules of trainer/model/gpt.h
// name them. Matrices are [out][in].
// The token embedding "wte.weight" is used twice (multi_use): at the input and as output head.
std::vector<ParameterNote> GptParameters(const GptShape& shape);

// The first and the last block that a parameter of such a name belongs to: the embeddings to the
// first one, what follows the blocks to the last, and the token embedding to both.
std::pair<uint32_t, uint32_t> GptBlocksOf(const std::string& name, uint32_t layers);

// True for the weight of a linear layer, which is neither a table nor a norm.
bool IsGptLinear(const ParameterNote& note);

// Elements of all parameters; the tied embedding counts once.
uint64_t GptParameterCount(const GptShape& shape);

// Floating-point operations of forward and backward for one token in a sequence of `tokens`,
// recomputation not counted:
// 6 for each weight of a matrix product, and 12 * C * tokens per layer for attention's two
// products.
double GptFlopsPerToken(const GptShape& shape, uint64_t tokens);

}  // namespace tidepool::trainer

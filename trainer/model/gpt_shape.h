// GptParameters: the parameters of a generative transformer of given sizes, and the preset sizes;
// needs neither LibTorch nor weights.
//
// Any thread; values and pure functions.
// GPT-2's form: token and position embeddings, `layers` blocks (LayerNorm, causal self-attention,
// LayerNorm, four-fold MLP with GELU, residual connections, biases), a final LayerNorm, and the
// token embedding again as output head. Llama's form: trainer/model/llama_shape.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "trainer/layout/build_layout.h"
#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

// From smallest to largest.
std::span<const GptShape> GptPresets();
// Errors: kUsageError (no such preset; the text lists the presets).
Result<GptShape> FindGptPreset(const std::string& name);
// Errors: kUsageError (a size is 0, or heads does not divide hidden), those of CheckLlamaSizes and
// CheckMoe.
Status CheckGptShape(const GptShape& shape);

// The epsilon of all layer norms of GPT-2's form.
inline constexpr double kGptNormEpsilon = 1e-5;

// All parameters in forward order, named like the modules of trainer/model/gpt.h. Matrices are
// [out][in]. A token embedding that is also the output head is used twice (multi_use). With
// shape.tile_elements, large linear layers are cut (trainer/model/tiles/linear_tiles.h).
std::vector<ParameterNote> GptParameters(const GptShape& shape);

// The name of the token embedding.
std::string TokenTableName(const GptShape& shape);

// Whether the output head is the token embedding.
bool HasTiedHead(const GptShape& shape);

// The first and the last block to which a parameter belongs: the embeddings to the first,
// everything after the blocks to the last, and a tied token embedding to both.
std::pair<uint32_t, uint32_t> GptBlocksOf(const std::string& name, const GptShape& shape);

// True for tensors that Hugging Face stores as [in][out]: weights of linear layers of GPT-2's form
// (Conv1D there).
bool IsConv1D(const ParameterNote& note);

// Elements of all parameters; counts a tied embedding once.
uint64_t GptParameterCount(const GptShape& shape);

// Floating-point operations of forward and backward per token in a sequence of `tokens`, without
// recomputation: 6 per weight of a matrix product and, per layer, 12 * tokens per element of a
// query for attention's two products.
double GptFlopsPerToken(const GptShape& shape, uint64_t tokens);

}  // namespace tidepool::trainer

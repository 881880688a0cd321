// LlamaParameters: the parameters of a model of Llama's form, and other consequences of its sizes;
// needs neither LibTorch nor weights.
//
// Any thread; pure functions. The model: token embeddings, blocks (RMSNorm, causal self-attention
// with rotary positions and grouped keys and values, RMSNorm, MLP with SwiGLU, residual
// connections, no biases), a final RMSNorm, and an output head of its own or tied to the token
// embedding.
// Sources: Llama (Touvron et al. 2023), section 2.2; rotary positions: RoFormer (Su et al. 2021),
// eq. 34; grouped keys: Ainslie et al. 2023; SwiGLU: Shazeer 2020, eq. 6; RMSNorm: Zhang and
// Sennrich 2019, eq. 4. Numbers and names are those of transformers' LlamaForCausalLM. In blocks
// with experts (trainer/model/experts.h) the names are those of MixtralForCausalLM's files.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "trainer/layout/build_layout.h"
#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

// The name of the token embedding.
inline constexpr const char* kLlamaTokenTable = "model.embed_tokens.weight";
// The name of an output head of its own.
inline constexpr const char* kLlamaHead = "lm_head.weight";

// Errors: kUsageError (a size is 0 or does not match the others).
Status CheckLlamaSizes(const GptShape& shape);

// GptParameters, GptParameterCount and GptFlopsPerToken for Llama's form.
std::vector<ParameterNote> LlamaParameters(const GptShape& shape);
uint64_t LlamaParameterCount(const GptShape& shape);
double LlamaFlopsPerToken(const GptShape& shape, uint64_t tokens);

// The angle between adjacent positions for each pair of elements of a head: [D / 2].
std::vector<float> RotaryFrequencies(const LlamaSizes& sizes);

}  // namespace tidepool::trainer

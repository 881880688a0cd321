// InitGptParameter: the initial values of a parameter, or of any part of it, without holding the
// model.
//
// Any thread; a pure function of (seed, name, element number): any order, sharding and rank count
// gives the same model.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "trainer/model/gpt_shape.h"

namespace tidepool::trainer {

// Fills out[0 ...) with elements begin, begin + 1, ... of the parameter called `name`. As in GPT-2:
// matrices and embeddings are normal with standard deviation 0.02, those that end a residual branch
// (c_proj; in Llama's form o_proj, down_proj and w2) with 0.02 / sqrt(2 * layers); biases are 0,
// and weights of norms are 1. Adapters (trainer/model/lora.h): A is normal with variance 1 / (3 *
// its columns), as in LoRA's own code, and B is 0: the model starts equal to its base.
void InitGptParameter(const std::string& name, const GptShape& shape, uint64_t seed, uint64_t begin,
                      std::span<float> out);

}  // namespace tidepool::trainer

// LlamaBlocks: the blocks of a model of Llama's form (trainer/model/llama_shape.h) in plain
// LibTorch.
//
// The model's thread. LibTorch's errors propagate as c10::Error. Order and rounding are those of
// transformers' LlamaForCausalLM: norms are computed in fp32 and rounded to their input's dtype
// before the weight is applied; angles are computed in fp32.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/model/block_parts.h"
#include "trainer/model/experts.h"
#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

class LlamaBlocks {
 public:
  // `parameters`: those of a model of this shape, by name. `lora_scale`: LoraShape::scale.
  // `exchange`: for ranks that share experts.
  LlamaBlocks(const GptShape& shape, const NamedTensors& parameters, double lora_scale,
              TokenExchange exchange);
  LlamaBlocks(const LlamaBlocks&) = delete;
  LlamaBlocks& operator=(const LlamaBlocks&) = delete;

  // Runs block `number`; x and the result: [B][T][C]. With a cache, continues after its tokens.
  at::Tensor Run(size_t number, const at::Tensor& x, KvCache* cache);
  // x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension.
  at::Tensor Norm(const at::Tensor& weight, const at::Tensor& x) const;
  // The router losses of the blocks with experts.
  RouterLosses* losses() { return &losses_; }

 private:
  struct Block {
    Affine input_norm, q, k, v, o, post_norm;
    Affine gate, up, down;  // undefined in a block of experts alone
    std::optional<Experts> experts;
  };

  at::Tensor Attention(size_t number, const at::Tensor& x, KvCache* cache);
  at::Tensor Mlp(const Block& block, const at::Tensor& x);
  // Rotates each pair of elements by the angle of its position: [B][heads][T][D], positions from
  // `begin` on.
  at::Tensor Turn(const at::Tensor& x, int64_t begin);
  // Makes the tables for this many positions, unless they exist.
  void MakeTables(int64_t positions, const at::TensorOptions& options);

  const GptShape shape_;
  const double lora_scale_;
  const TokenExchange exchange_;
  RouterLosses losses_;
  std::vector<Block> blocks_;
  at::Tensor cosines_, sines_;  // [positions][D]: each half of a row has all angles
};

}  // namespace tidepool::trainer

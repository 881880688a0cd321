#include "trainer/model/llama_blocks.h"

#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "trainer/model/llama_shape.h"
#include "trainer/model/moe/moe_layers.h"

namespace tidepool::trainer {

LlamaBlocks::LlamaBlocks(const GptShape& shape, const NamedTensors& parameters, double lora_scale,
                         TokenExchange exchange)
    : shape_(shape), lora_scale_(lora_scale), exchange_(std::move(exchange)) {
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string path = "model.layers." + std::to_string(layer) + ".";
    const auto find = [&](const char* name) { return FindAffine(parameters, path + name); };

    Block& block = blocks_.emplace_back();
    block.input_norm = find("input_layernorm");
    block.q = find("self_attn.q_proj");
    block.k = find("self_attn.k_proj");
    block.v = find("self_attn.v_proj");
    block.o = find("self_attn.o_proj");
    block.post_norm = find("post_attention_layernorm");

    const MoeSizes moe = MoeOf(shape, layer);
    if (moe.on()) {
      const BlockContext context{&losses_, &exchange_};
      block.experts.emplace(shape, layer, parameters, context);
      if (!moe.residual) continue;
    }
    block.gate = find("mlp.gate_proj");
    block.up = find("mlp.up_proj");
    block.down = find("mlp.down_proj");
  }
}

at::Tensor LlamaBlocks::Norm(const at::Tensor& weight, const at::Tensor& x) const {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale =
      at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + shape_.llama.norm_epsilon);
  return weight * (wide * scale).to(x.scalar_type());
}

void LlamaBlocks::MakeTables(int64_t positions, const at::TensorOptions& options) {
  if (cosines_.defined() && cosines_.size(0) >= positions) return;
  const at::NoGradGuard no_gradients;
  const std::vector<float> frequencies = RotaryFrequencies(shape_.llama);
  const at::Tensor turns = at::empty({static_cast<int64_t>(frequencies.size())}, at::kFloat);
  std::copy(frequencies.begin(), frequencies.end(), turns.mutable_data_ptr<float>());

  const at::Tensor angles =
      at::arange(positions, at::kFloat).unsqueeze(1) * at::cat({turns, turns}).unsqueeze(0);
  cosines_ = at::cos(angles).to(options.device(), options.dtype().toScalarType());
  sines_ = at::sin(angles).to(options.device(), options.dtype().toScalarType());
}

at::Tensor LlamaBlocks::Turn(const at::Tensor& x, int64_t begin) {
  const int64_t tokens = x.size(2), half = x.size(3) / 2;
  const at::Tensor turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, -1);
  return x * cosines_.narrow(0, begin, tokens) + turned * sines_.narrow(0, begin, tokens);
}

at::Tensor LlamaBlocks::Attention(size_t number, const at::Tensor& x, KvCache* cache) {
  const Block& block = blocks_[number];
  const int64_t batch = x.size(0), tokens = x.size(1);
  const int64_t begin = cache != nullptr ? cache->tokens : 0;
  MakeTables(begin + tokens, x.options());

  const auto by_head = [&](const Affine& layer, int64_t heads) {
    return layer.Linear(x, lora_scale_)
        .view({batch, tokens, heads, int64_t{shape_.llama.head_size}})
        .transpose(1, 2);
  };

  Attended now;
  now.queries = Turn(by_head(block.q, shape_.heads), begin);
  now.keys = Turn(by_head(block.k, shape_.llama.kv_heads), begin);
  now.values = by_head(block.v, shape_.llama.kv_heads);
  return block.o.Linear(Attend(now, number, shape_.context, cache), lora_scale_);
}

at::Tensor LlamaBlocks::Mlp(const Block& block, const at::Tensor& x) {
  const at::Tensor wide =
      at::silu(block.gate.Linear(x, lora_scale_)) * block.up.Linear(x, lora_scale_);
  return block.down.Linear(wide, lora_scale_);
}

at::Tensor LlamaBlocks::Run(size_t number, const at::Tensor& x, KvCache* cache) {
  Block& block = blocks_[number];
  const at::Tensor attended = x + Attention(number, Norm(block.input_norm.weight, x), cache);
  const at::Tensor normed = Norm(block.post_norm.weight, attended);
  if (!block.experts) return attended + Mlp(block, normed);
  if (!block.gate.defined()) return attended + block.experts->Run(normed);

  // The order of the parameters' list: operands of + have none.
  const at::Tensor residual = Mlp(block, normed);
  return attended + (residual + block.experts->Run(normed));
}

}  // namespace tidepool::trainer

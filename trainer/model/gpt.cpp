#include "trainer/model/gpt.h"

#include <string>

#include "base/check.h"
#include "trainer/model/checkpoint.h"
#include "trainer/model/gpt_init.h"
#include "trainer/model/loss/tiled_loss.h"
#include "trainer/model/moe/moe_layers.h"

namespace tidepool::trainer {
namespace {

std::vector<int64_t> SizesOf(const ParameterNote& note) {
  return {note.dims.begin(), note.dims.end()};
}

}  // namespace

Gpt::Gpt(const GptShape& shape, const at::TensorOptions& options, const LoraShape& lora,
         const TokenExchange& exchange)
    : Gpt(
          shape,
          [&options](const ParameterNote& note) { return at::empty(SizesOf(note), options); }, lora,
          exchange) {}

Gpt::Gpt(const GptShape& shape, const ParameterMaker& make, const LoraShape& lora,
         const TokenExchange& exchange)
    : torch::nn::Module("Gpt"), shape_(shape), lora_(lora) {
  TP_CHECK(CheckGptShape(shape).ok(), "the shape was checked before");
  for (const ParameterNote& note : GptParameters(shape, lora)) Register(note, make);

  const auto parameters = named_parameters();
  wte_ = head_ = parameters[TokenTableName(shape)];
  if (shape.form == ModelForm::kLlama) {
    if (const at::Tensor* head = parameters.find("lm_head.weight")) head_ = *head;
    llama_ =
        std::make_unique<LlamaBlocks>(shape, parameters, lora.on() ? lora.scale() : 0, exchange);
    ln_f_ = FindAffine(parameters, "model.norm");
    return;
  }

  wpe_ = parameters["wpe.weight"];
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string path = "h." + std::to_string(layer) + ".";
    blocks_.push_back({.ln_1 = FindAffine(parameters, path + "ln_1"),
                       .c_attn = FindAffine(parameters, path + "attn.c_attn"),
                       .c_proj = FindAffine(parameters, path + "attn.c_proj"),
                       .ln_2 = FindAffine(parameters, path + "ln_2"),
                       .c_fc = FindAffine(parameters, path + "mlp.c_fc"),
                       .c_out = FindAffine(parameters, path + "mlp.c_proj")});
  }
  ln_f_ = FindAffine(parameters, "ln_f");
}

// "h.3.attn.c_attn.weight" becomes the parameter "weight" of nested modules "h", "3", "attn",
// "c_attn", made where missing.
void Gpt::Register(const ParameterNote& note, const ParameterMaker& make) {
  torch::nn::Module* module = this;
  size_t begin = 0;
  for (size_t dot; (dot = note.name.find('.', begin)) != std::string::npos; begin = dot + 1) {
    const std::string child = note.name.substr(begin, dot - begin);
    const auto children = module->named_children();
    const auto* existing = children.find(child);
    module = existing != nullptr
                 ? existing->get()
                 : module->register_module(child, std::make_shared<torch::nn::Module>(child)).get();
  }

  const at::Tensor& parameter = module->register_parameter(note.name.substr(begin), make(note),
                                                           /*requires_grad=*/!note.frozen);
  TP_CHECK(parameter.sizes() == at::IntArrayRef(SizesOf(note)),
           "the maker gave the shape that was asked for");
}

at::Tensor Gpt::Linear(const Affine& layer, const at::Tensor& x) const {
  return layer.Linear(x, lora_.on() ? lora_.scale() : 0);
}

at::Tensor Gpt::Norm(const Affine& norm, const at::Tensor& x) const {
  return at::layer_norm(x, {shape_.hidden}, norm.weight, norm.bias, kGptNormEpsilon);
}

at::Tensor Gpt::LastNorm(const at::Tensor& x) const {
  return llama_ != nullptr ? llama_->Norm(ln_f_.weight, x) : Norm(ln_f_, x);
}

at::Tensor Gpt::Attention(size_t number, const at::Tensor& x, KvCache* cache) const {
  const Block& block = blocks_[number];
  const int64_t batch = x.size(0), tokens = x.size(1), heads = shape_.heads,
                head_size = shape_.hidden / shape_.heads;
  const auto parts = Linear(block.c_attn, x).chunk(3, -1);
  const auto by_head = [&](const at::Tensor& part) {
    return part.view({batch, tokens, heads, head_size}).transpose(1, 2);
  };

  const Attended now{by_head(parts[0]), by_head(parts[1]), by_head(parts[2])};
  return Linear(block.c_proj, Attend(now, number, shape_.context, cache));
}

at::Tensor Gpt::RunBlock(size_t number, const at::Tensor& x, KvCache* cache) {
  if (llama_ != nullptr) return llama_->Run(number, x, cache);
  const Block& block = blocks_[number];
  const at::Tensor attended = x + Attention(number, Norm(block.ln_1, x), cache);
  const at::Tensor wide = at::gelu(Linear(block.c_fc, Norm(block.ln_2, attended)), "tanh");
  return attended + Linear(block.c_out, wide);
}

at::Tensor Gpt::Embed(const at::Tensor& tokens, int64_t begin) const {
  TORCH_CHECK(tokens.dim() == 2 && begin + tokens.size(1) <= shape_.context,
              "tokens must be [B][T] with T up to ", shape_.context - begin, ", not ",
              tokens.sizes());

  if (!wpe_.defined()) return at::embedding(wte_, tokens);
  const at::Tensor positions = at::arange(begin, begin + tokens.size(1), tokens.options());
  return at::embedding(wte_, tokens) + at::embedding(wpe_, positions);
}

at::Tensor Gpt::Blocks(size_t first, size_t behind, at::Tensor x, KvCache* cache) {
  for (size_t i = first; i < behind; ++i) {
    x = checkpointing_
            ? Checkpoint([this, i](const at::Tensor& input) { return RunBlock(i, input, nullptr); },
                         x, store_)
            : RunBlock(i, x, cache);
  }
  return x;
}

at::Tensor Gpt::Hidden(const at::Tensor& tokens, KvCache* cache) {
  const at::Tensor x = Embed(tokens, cache != nullptr ? cache->tokens : 0);
  return LastNorm(Blocks(0, shape_.layers, x, cache));
}

at::Tensor Gpt::Forward(const at::Tensor& tokens) {
  return at::linear(Hidden(tokens), head_);
}

at::Tensor Gpt::RunBlocks(uint32_t first, uint32_t behind, const at::Tensor& input) {
  return Blocks(first, behind, first == 0 ? Embed(input, 0) : input, nullptr);
}

at::Tensor Gpt::Loss(const at::Tensor& tokens, const at::Tensor& targets) {
  if (!HasExperts(shape_)) return LossBehind(RunBlocks(0, shape_.layers, tokens), targets);
  llama_->losses()->Begin();
  const at::Tensor hidden = RunBlocks(0, shape_.layers, tokens);
  llama_->losses()->End();
  return llama_->losses()->AddTo(LossBehind(hidden, targets));
}

at::Tensor Gpt::LossBehind(const at::Tensor& hidden, const at::Tensor& targets) {
  const at::Tensor& head = given_head_.defined() ? given_head_ : head_;
  if (vocab_tiles_ > 1) {
    return TiledCrossEntropy(LastNorm(hidden).view({-1, shape_.hidden}), head,
                             targets.reshape({-1}), vocab_tiles_);
  }
  const at::Tensor logits = at::linear(LastNorm(hidden), head);
  return at::cross_entropy_loss(logits.view({-1, shape_.vocab}).to(at::kFloat),
                                targets.reshape({-1}));
}

at::Tensor Gpt::NextLogits(const at::Tensor& tokens) {
  const at::NoGradGuard no_gradients;
  return at::linear(Hidden(tokens).select(1, -1), head_);
}

at::Tensor Gpt::NextLogits(const at::Tensor& tokens, KvCache* cache) {
  const at::NoGradGuard no_gradients;
  TORCH_CHECK(!checkpointing_ && tokens.size(0) == 1 && (cache->tokens == 0 || tokens.size(1) == 1),
              "a cache takes one text, all at once or token by token");
  cache->keys.resize(shape_.layers);
  cache->values.resize(shape_.layers);

  const at::Tensor logits = at::linear(Hidden(tokens, cache).select(1, -1), head_);
  cache->tokens += tokens.size(1);
  return logits;
}

void InitGpt(Gpt* model, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  std::vector<float> values;
  for (auto& item : model->named_parameters()) {
    at::Tensor& parameter = item.value();
    values.resize(static_cast<size_t>(parameter.numel()));
    InitGptParameter(item.key(), model->shape(), seed, 0, values);
    parameter.copy_(at::from_blob(values.data(), parameter.sizes(), at::kFloat));
  }
}

}  // namespace tidepool::trainer

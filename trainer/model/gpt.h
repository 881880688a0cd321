// Gpt: a language model of GPT-2's or Llama's form in plain LibTorch. It does not depend on chunks,
// caches or servers.
//
// One thread per object. LibTorch's errors propagate as c10::Error: catch them where a step runs.
// Shapes: B sequences, T tokens each (T <= shape.context), C = hidden, V = vocab.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "trainer/model/activation_store.h"
#include "trainer/model/block_parts.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/model/llama_blocks.h"
#include "trainer/model/lora.h"
#include "trainer/model/token_exchange.h"

namespace tidepool::trainer {

// Makes the tensor of one parameter; its memory may come from anywhere.
using ParameterMaker = std::function<at::Tensor(const ParameterNote&)>;

class Gpt : public torch::nn::Module {
 public:
  // Parameters have no values yet (see InitGpt). `options`: dtype and device, meta included. With
  // adapters only these require gradients. `exchange`: for ranks that share the experts of a block;
  // by default this rank has them all.
  Gpt(const GptShape& shape, const at::TensorOptions& options, const LoraShape& lora = {},
      const TokenExchange& exchange = NoExchange());
  Gpt(const GptShape& shape, const ParameterMaker& make, const LoraShape& lora = {},
      const TokenExchange& exchange = NoExchange());

  // Recomputes each block in backward instead of keeping its activations. Same bits, about a third
  // more work. `store`: holds the blocks' inputs until backward; null: they stay in place.
  void SetCheckpointing(bool on, std::shared_ptr<ActivationStore> store = nullptr) {
    checkpointing_ = on;
    store_ = std::move(store);
  }

  // Computes the loss in so many tiles of the vocabulary (trainer/model/loss/tiled_loss.h); 1: all
  // logits at once. At most V.
  void SetVocabTiles(uint32_t tiles) { vocab_tiles_ = tiles; }

  // tokens: int64 [B][T]. Returns logits [B][T][V].
  at::Tensor Forward(const at::Tensor& tokens);
  // Mean cross entropy in fp32 of predicting targets: int64 [B][T] from tokens. With experts, and
  // if gradients are on, includes their routers' losses.
  at::Tensor Loss(const at::Tensor& tokens, const at::Tensor& targets);
  // Runs a stage of the model: blocks `first` to `behind` - 1. The embeddings belong to the first
  // block, everything after the blocks to LossBehind. `input`: tokens [B][T] if first is 0, else
  // [B][T][C]. Returns [B][T][C].
  at::Tensor RunBlocks(uint32_t first, uint32_t behind, const at::Tensor& input);
  // The loss from the last block's output.
  at::Tensor LossBehind(const at::Tensor& hidden, const at::Tensor& targets);
  // Sets the token embedding that LossBehind uses from now on: another tensor [V][C] with the same
  // values, for a process without the model's own. Undefined: the model's own.
  void SetHead(at::Tensor head) { given_head_ = std::move(head); }
  // The model's own token embedding: [V][C].
  const at::Tensor& token_embedding() const { return wte_; }
  // Logits of the last position only: [B][V]; without gradients.
  at::Tensor NextLogits(const at::Tensor& tokens);
  // The same after the tokens in `cache`: appends tokens [1][T]. T is 1 unless the cache is empty;
  // at most shape.context tokens in total. Equals one call with all tokens, except for rounding.
  at::Tensor NextLogits(const at::Tensor& tokens, KvCache* cache);

  const GptShape& shape() const { return shape_; }

 private:
  struct Block {  // of GPT-2's form
    Affine ln_1, c_attn, c_proj, ln_2, c_fc, c_out;
  };

  void Register(const ParameterNote& note, const ParameterMaker& make);
  // Input tokens or `x`, and the result, are [B][T][C]. With a cache, continues after its tokens.
  at::Tensor Hidden(const at::Tensor& tokens, KvCache* cache = nullptr);
  at::Tensor Embed(const at::Tensor& tokens, int64_t begin) const;
  at::Tensor Blocks(size_t first, size_t behind, at::Tensor x, KvCache* cache);
  at::Tensor RunBlock(size_t number, const at::Tensor& x, KvCache* cache);
  at::Tensor Attention(size_t number, const at::Tensor& x, KvCache* cache) const;
  at::Tensor Norm(const Affine& norm, const at::Tensor& x) const;
  at::Tensor LastNorm(const at::Tensor& x) const;
  at::Tensor Linear(const Affine& layer, const at::Tensor& x) const;

  GptShape shape_;
  LoraShape lora_;
  bool checkpointing_ = false;
  std::shared_ptr<ActivationStore> store_;
  uint32_t vocab_tiles_ = 1;
  at::Tensor wte_, wpe_;   // [V][C], [context][C]; wpe_ only in GPT-2's form
  at::Tensor head_;        // [V][C]; the same tensor as wte_ if tied
  at::Tensor given_head_;  // set by SetHead
  std::vector<Block> blocks_;
  std::unique_ptr<LlamaBlocks> llama_;  // instead of blocks_, in Llama's form
  Affine ln_f_;
};

// Sets every parameter's initial values (trainer/model/gpt_init.h), rounded to its dtype.
void InitGpt(Gpt* model, uint64_t seed);

}  // namespace tidepool::trainer

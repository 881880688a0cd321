#include "trainer/model/llama_shape.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <string>
#include <utility>

#include "trainer/model/moe/moe_layers.h"

namespace tidepool::trainer {
namespace {

// Weights of one block's attention matrices.
uint64_t AttentionWeights(const GptShape& shape) {
  const uint64_t c = shape.hidden, queries = uint64_t{shape.heads} * shape.llama.head_size,
                 keys = uint64_t{shape.llama.kv_heads} * shape.llama.head_size;
  return 2 * c * queries + 2 * c * keys;
}

// Weights of all blocks, counting all experts, or those of one token.
uint64_t BlockWeights(const GptShape& shape, bool of_token) {
  const uint64_t c = shape.hidden, mlp = 3 * c * shape.llama.mlp;
  uint64_t weights = shape.layers * AttentionWeights(shape);
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const MoeSizes moe = MoeOf(shape, layer);
    if (!moe.on() || moe.residual) weights += mlp;
    if (!moe.on()) continue;
    const uint64_t experts = of_token ? moe.top_k : moe.experts;
    weights += moe.experts * c + experts * 3 * c * moe.width;
  }
  return weights;
}

// Where a parameter belongs, besides its block.
struct Belongs {
  uint32_t data_group = 0, unit = 0;
};
// Appends a parameter.
using AddParameter = std::function<void(std::string, std::vector<uint64_t>, Belongs)>;

// The MLP of one block, its experts, or both.
void AddMlp(const GptShape& shape, uint32_t layer, const std::string& block,
            const AddParameter& add) {
  const MoeSizes moe = MoeOf(shape, layer);
  const uint64_t c = shape.hidden, width = moe.width;
  if (!moe.on() || moe.residual) {
    add(block + "mlp.gate_proj.weight", {shape.llama.mlp, c}, {});
    add(block + "mlp.up_proj.weight", {shape.llama.mlp, c}, {});
    add(block + "mlp.down_proj.weight", {c, shape.llama.mlp}, {});
  }
  if (!moe.on()) return;

  add(block + "block_sparse_moe.gate.weight", {moe.experts, c}, {});
  for (uint32_t i = 0; i < moe.experts; ++i) {
    const std::string expert = block + "block_sparse_moe.experts." + std::to_string(i) + ".";
    const Belongs belongs{ExpertGroup(shape, layer, i), ExpertUnit(shape, layer, i)};
    add(expert + "w1.weight", {width, c}, belongs);
    add(expert + "w3.weight", {width, c}, belongs);
    add(expert + "w2.weight", {c, width}, belongs);
  }
}

}  // namespace

Status CheckLlamaSizes(const GptShape& shape) {
  const LlamaSizes& llama = shape.llama;
  const auto bad = [&shape](const std::string& what, const std::string& remedy) {
    return Status(ErrorId::kUsageError, "the model shape '" + shape.name + "' has " + what)
        .Fix(remedy);
  };

  if (llama.kv_heads == 0 || shape.heads % llama.kv_heads != 0) {
    return bad(std::to_string(llama.kv_heads) + " heads of keys for " +
                   std::to_string(shape.heads) + " of queries",
               "give a number of key and value heads that divides the heads");
  }

  if (llama.head_size == 0 || llama.head_size % 2 != 0)
    return bad("heads of " + std::to_string(llama.head_size) + " elements",
               "give an even size, because rotary positions turn pairs");
  if (llama.mlp == 0) return bad("an MLP of no width", "give a positive width");

  if (!(llama.rotary_base > 0) || !(llama.norm_epsilon > 0) || !(llama.stretch.factor >= 0))
    return bad("a rotary base, norm epsilon or rotary factor that is not positive",
               "give positive numbers");
  if (llama.stretch.factor > 0 &&
      (llama.stretch.first_context == 0 || !(llama.stretch.high > llama.stretch.low)))
    return bad("rotary frequencies that are stretched between no two lengths",
               "give a low factor below the high one, and the first context");
  return {};
}

std::vector<ParameterNote> LlamaParameters(const GptShape& shape) {
  const uint64_t c = shape.hidden, queries = uint64_t{shape.heads} * shape.llama.head_size,
                 keys = uint64_t{shape.llama.kv_heads} * shape.llama.head_size;
  std::vector<ParameterNote> notes;

  const auto add = [&notes](std::string name, std::vector<uint64_t> dims, Belongs belongs = {}) {
    const uint32_t group = dims.size() == 2 ? kDecayGroup : kNoDecayGroup;
    notes.push_back({.name = std::move(name),
                     .dims = std::move(dims),
                     .optimizer_group = group,
                     .data_group = belongs.data_group,
                     .multi_use = false,
                     .unit = belongs.unit});
  };

  add(kLlamaTokenTable, {shape.vocab, c});
  notes.back().multi_use = shape.llama.tied;

  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string block = "model.layers." + std::to_string(layer) + ".";
    add(block + "input_layernorm.weight", {c});
    add(block + "self_attn.q_proj.weight", {queries, c});
    add(block + "self_attn.k_proj.weight", {keys, c});
    add(block + "self_attn.v_proj.weight", {keys, c});
    add(block + "self_attn.o_proj.weight", {c, queries});
    add(block + "post_attention_layernorm.weight", {c});
    AddMlp(shape, layer, block, add);
  }

  add("model.norm.weight", {c});
  if (!shape.llama.tied) add(kLlamaHead, {shape.vocab, c});
  return notes;
}

uint64_t LlamaParameterCount(const GptShape& shape) {
  const uint64_t c = shape.hidden, tables = shape.llama.tied ? 1 : 2;
  return tables * shape.vocab * c + BlockWeights(shape, /*of_token=*/false) + shape.layers * 2 * c +
         c;
}

double LlamaFlopsPerToken(const GptShape& shape, uint64_t tokens) {
  const double head = static_cast<double>(shape.hidden) * shape.vocab,
               blocks = static_cast<double>(BlockWeights(shape, /*of_token=*/true)),
               queries = static_cast<double>(shape.heads) * shape.llama.head_size;
  return 6 * (blocks + head) + 12 * shape.layers * queries * static_cast<double>(tokens);
}

std::vector<float> RotaryFrequencies(const LlamaSizes& sizes) {
  const RotaryStretch& stretch = sizes.stretch;
  std::vector<float> frequencies(sizes.head_size / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double turn = std::pow(
        sizes.rotary_base, -2.0 * static_cast<double>(i) / static_cast<double>(sizes.head_size));
    // Waves that fit `high` times into the first context stay; those that fit less than `low` times
    // are slowed down.
    const double waves = stretch.first_context * turn / (2 * std::numbers::pi);
    double kept = 1;
    if (stretch.factor > 0 && waves < stretch.high) {
      const double fast = std::max(0.0, (waves - stretch.low) / (stretch.high - stretch.low));
      kept = fast + (1 - fast) / stretch.factor;
    }
    frequencies[i] = static_cast<float>(turn * kept);
  }
  return frequencies;
}

}  // namespace tidepool::trainer

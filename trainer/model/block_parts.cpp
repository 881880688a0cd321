#include "trainer/model/block_parts.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "trainer/model/tiles/linear_tiles.h"

namespace tidepool::trainer {
namespace {

// Appends the new ones to the cached ones, and returns all.
at::Tensor AppendTo(at::Tensor* kept, const at::Tensor& fresh, int64_t begin, int64_t context) {
  if (!kept->defined())
    *kept = at::empty({1, fresh.size(1), context, fresh.size(3)}, fresh.options());
  kept->narrow(2, begin, fresh.size(2)).copy_(fresh);
  return kept->narrow(2, 0, begin + fresh.size(2));
}

// [B][KV][T][D] to [B][heads][T][D].
at::Tensor ForEachHead(const at::Tensor& shared, int64_t heads) {
  const int64_t batch = shared.size(0), kv_heads = shared.size(1), tokens = shared.size(2),
                size = shared.size(3);
  if (kv_heads == heads) return shared;
  return shared.unsqueeze(2)
      .expand({batch, kv_heads, heads / kv_heads, tokens, size})
      .reshape({batch, heads, tokens, size});
}

at::Tensor LinearInTiles(const Affine& layer, const at::Tensor& x) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const at::Tensor& tile : layer.tiles) {
    const at::Tensor bias =
        layer.bias.defined() ? layer.bias.narrow(0, begin, tile.size(0)) : at::Tensor();
    parts.push_back(at::linear(x, tile, bias));
    begin += tile.size(0);
  }
  return at::cat(parts, -1);
}

}  // namespace

at::Tensor Affine::Linear(const at::Tensor& x, double lora_scale) const {
  if (!tiles.empty()) return LinearInTiles(*this, x);
  const at::Tensor y = at::linear(x, weight, bias);
  if (!lora_a.defined()) return y;
  return y.add(at::linear(at::linear(x, lora_a), lora_b), lora_scale);
}

Affine FindAffine(const NamedTensors& parameters, const std::string& module) {
  Affine found;
  const std::string name = module + ".weight";
  if (const at::Tensor* weight = parameters.find(name)) found.weight = *weight;
  while (const at::Tensor* tile = parameters.find(TileName(name, found.tiles.size())))
    found.tiles.push_back(*tile);
  TP_CHECK(found.defined(), "the layer has a weight");
  if (const at::Tensor* bias = parameters.find(module + ".bias")) found.bias = *bias;
  if (const at::Tensor* a = parameters.find(module + ".lora_A.weight")) found.lora_a = *a;
  if (const at::Tensor* b = parameters.find(module + ".lora_B.weight")) found.lora_b = *b;
  return found;
}

at::Tensor Attend(const Attended& now, size_t number, int64_t context, KvCache* cache) {
  at::Tensor keys = now.keys, values = now.values;
  if (cache != nullptr) {
    keys = AppendTo(&cache->keys[number], keys, cache->tokens, context);
    values = AppendTo(&cache->values[number], values, cache->tokens, context);
  }

  // A single token after others sees all of them.
  const bool causal = cache == nullptr || cache->tokens == 0;
  const int64_t heads = now.queries.size(1);
  const at::Tensor mixed = at::scaled_dot_product_attention(
      now.queries, ForEachHead(keys, heads), ForEachHead(values, heads), {}, 0.0, causal);
  return mixed.transpose(1, 2).reshape(
      {now.queries.size(0), now.queries.size(2), heads * now.queries.size(3)});
}

}  // namespace tidepool::trainer

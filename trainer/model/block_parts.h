// BlockParts: building blocks shared by all forms of model: layers with their adapters, attention,
// and the KV cache for text generation.
//
// The model's thread. LibTorch's errors propagate as c10::Error. Shapes: B sequences, T tokens
// each, NH heads of D elements, of which KV have keys and values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

namespace tidepool::trainer {

// KvCache: keys and values of the tokens that a model has seen, so that the next token costs one
// position instead of all. Initially empty; one text.
struct KvCache {
  std::vector<at::Tensor> keys, values;  // by block: [1][KV][context][D]
  int64_t tokens = 0;                    // number seen: positions 0 .. tokens - 1
};

// A linear layer or a norm; missing parts are undefined.
struct Affine {
  at::Tensor weight, bias;  // [out][in], [out]; of a norm [C], [C]
  // Instead of a weight: its rows in tiles (trainer/model/tiles/linear_tiles.h), each [rows][in].
  std::vector<at::Tensor> tiles = {};
  at::Tensor lora_a, lora_b;  // [rank][in], [out][rank]; undefined without an adapter

  bool defined() const { return weight.defined() || !tiles.empty(); }
  // weight x + bias, plus `lora_scale` times B A x if there is an adapter: [..][in] to [..][out].
  // A layer in tiles has no adapter; its operators read one tile each.
  at::Tensor Linear(const at::Tensor& x, double lora_scale) const;
};

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

// The layer called `module`; its weight must exist, whole or in tiles.
Affine FindAffine(const NamedTensors& parameters, const std::string& module);

// The inputs of attention.
struct Attended {
  at::Tensor queries, keys, values;  // [B][NH][T][D]; keys and values [B][KV][T][D]
};

// Causal attention of block `number`, after the tokens in the cache, if there is one; appends the
// new ones. `context`: the capacity of a cache in tokens. Each key and value head serves NH / KV
// consecutive query heads. Returns [B][T][NH * D].
at::Tensor Attend(const Attended& now, size_t number, int64_t context, KvCache* cache);

}  // namespace tidepool::trainer

// BlockParts: what the blocks of every form of model are made of: layers with their adapters,
// attention, and the keys and values that are kept while text is generated.
//
// The model's thread. Errors of LibTorch pass as c10::Error.
// Shapes: B sequences, T tokens each, NH heads of D elements, of which KV have keys and values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

namespace tidepool::trainer {

// KvCache: what attention needs of the tokens that a model has seen, so that the next token costs
// one position and not all of them. Begins empty; one text.
struct KvCache {
  std::vector<at::Tensor> keys, values;  // of each block: [1][KV][context][D]
  int64_t tokens = 0;                    // that were seen: positions 0 .. tokens - 1
};

// A linear layer or a norm; what it does not have is undefined.
struct Affine {
  at::Tensor weight, bias;    // [out][in], [out]; of a norm [C], [C]
  at::Tensor lora_a, lora_b;  // [rank][in], [out][rank]; undefined where there is no adapter

  // weight x + bias, and `lora_scale` times B A x where there is an adapter: [..][in] to [..][out].
  at::Tensor Linear(const at::Tensor& x, double lora_scale) const;
};

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

// The layer called `module`; its weight is there.
Affine FindAffine(const NamedTensors& parameters, const std::string& module);

// What attention is formed of.
struct Attended {
  at::Tensor queries, keys, values;  // [B][NH][T][D], [B][KV][T][D] twice
};

// Causal attention of block `number`, behind what the cache has seen, where there is one; what is
// new goes into it. `context`: the most tokens that a cache holds. Each head of keys and values
// serves NH / KV heads of queries, one after the other. Returns [B][T][NH * D].
at::Tensor Attend(const Attended& now, size_t number, int64_t context, KvCache* cache);

}  // namespace tidepool::trainer

// LoraShape: the small adapters that are trained over a frozen GPT (LoRA, Hu et al. 2021): a linear
// layer y = W x + b gets A [rank][in] and B [out][rank], and returns W x + b + alpha / rank * B A
// x. W and b never change.
//
// Any thread; values and pure functions; needs neither LibTorch nor weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "trainer/layout/build_layout.h"
#include "trainer/model/gpt_shape.h"

namespace tidepool::trainer {

struct LoraShape {
  uint32_t rank = 0;  // 0: no adapters, the model itself is trained
  float alpha = 0;    // B A x is scaled by alpha / rank
  // Linear layers of each block that have adapters, in order of use.
  std::vector<std::string> targets;

  // Whether there are adapters; whether a layer has one; and the scale of their product.
  bool on() const { return rank > 0; }
  bool Has(std::string_view target) const;
  double scale() const { return static_cast<double>(alpha) / rank; }
};

// Stands for all linear layers of attention, whatever their names in a model's form.
inline constexpr std::string_view kAttentionTargets = "attention";

// `targets`: comma-separated names of linear layers (attn.c_attn, attn.c_proj, mlp.c_fc,
// mlp.c_proj; of a Llama self_attn.q_proj, k_proj, v_proj, o_proj, mlp.gate_proj, up_proj,
// down_proj), kAttentionTargets, or all. Errors: kUsageError (a rank of 0 or above the smallest
// side of a layer, an alpha that is not positive, an unknown layer or none).
Result<LoraShape> MakeLoraShape(const GptShape& shape, uint32_t rank, float alpha,
                                const std::string& targets);
// The columns of the matrix A called `name`: those of its layer.
uint64_t AdapterColumns(const std::string& name, const GptShape& shape);
// The columns of the matrix called `name`, the weight of a block's linear layer; experts have none
// of these.
uint64_t LayerColumns(const std::string& name, const GptShape& shape);
// "attn.c_attn,attn.c_proj"
std::string TargetsText(const LoraShape& lora);

// All parameters in forward order. With adapters: those first, named like
// "h.0.attn.c_attn.lora_A.weight", then the model's own, frozen.
std::vector<ParameterNote> GptParameters(const GptShape& shape, const LoraShape& lora);

}  // namespace tidepool::trainer

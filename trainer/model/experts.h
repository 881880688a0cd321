// Experts: what stands in place of a block's MLP where a model has experts: a router sends each
// token to the `top_k` experts of the largest probability, and their results are added by these
// probabilities, which are made to sum up to 1.
//
// The model's thread. Errors of LibTorch pass as c10::Error; ModelError: router logits are not
// numbers. Sources: Mixtral (Jiang et al. 2024), section 2.1, for routing and the experts' form;
// auxiliary loss: Switch Transformers (Fedus et al. 2021), eq. 4, of which the mean over blocks is
// taken; z loss: ST-MoE (Zoph et al. 2022), eq. 5; capacity: GShard (Lepikhin et al. 2020), alg. 1.
// Deterministic: tokens are sorted by expert with a stable sort, and every sum has a fixed order,
// whatever the routing. All experts are computed, one after the other, those without tokens on
// none: their gradients are zeros then, and all ranks use all parameters in the same order. The CPU
// waits for the router's counts once a block. Where ranks share a block's experts
// (trainer/model/token_exchange.h), each computes its own for the tokens of all of them.
// Shapes: N tokens, C = hidden, E experts, k = top_k.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/model/block_parts.h"
#include "trainer/model/model_sizes.h"
#include "trainer/model/router_losses.h"
#include "trainer/model/token_exchange.h"

namespace tidepool::trainer {

// What the experts of all blocks share; it outlives them.
struct BlockContext {
  RouterLosses* losses = nullptr;
  const TokenExchange* exchange = nullptr;
};

class Experts {
 public:
  // Those of the block called `path` ("model.layers.3."). `blocks`: how many blocks of the model
  // have experts.
  Experts(const GptShape& shape, uint32_t blocks, const NamedTensors& parameters,
          const std::string& path, const BlockContext& context);

  // x: [B][T][C], likewise what comes back.
  at::Tensor Run(const at::Tensor& x);

 private:
  struct Routing {
    at::Tensor weights;           // [k][N], of x's type
    at::Tensor order;             // [k * N]: places of (choice, token), by expert
    at::Tensor back;              // where each (choice, token) is in that order
    std::vector<int64_t> counts;  // [E]: how many each expert has
  };
  struct Expert {
    Affine gate, up, down;
  };

  // Attaches the router's losses to x: [N][C].
  Routing Route(at::Tensor* x) const;
  // Throws ModelError where there are `bad` logits.
  void CheckLogits(int64_t bad) const;
  at::Tensor TermOf(const at::Tensor& logits, const at::Tensor& probabilities,
                    const at::Tensor& counts) const;
  // What this rank's experts give for [n][C] rows by expert.
  at::Tensor RunOwn(const at::Tensor& rows, const std::vector<int64_t>& counts) const;
  // The same of the experts of all ranks that share them.
  at::Tensor RunShared(const at::Tensor& given, const std::vector<int64_t>& counts) const;
  // What the experts give for [n][C] tokens that are sorted; zeros for those that find no room.
  at::Tensor RunSorted(const at::Tensor& sorted, const Routing& routing) const;

  const MoeSizes moe_;
  const std::string path_;
  const double aux_, z_;  // of this block's terms
  Affine router_;
  std::vector<Expert> experts_;  // this rank's
  RouterLosses* const losses_;
  const TokenExchange* const exchange_;
};

}  // namespace tidepool::trainer

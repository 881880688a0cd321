// Experts: replaces a block's MLP in a mixture-of-experts model, or stands beside it: a router
// sends each token to the `top_k` experts with the largest probabilities, and their results are
// added, weighted by these probabilities, normalised to a sum of 1.
//
// The model's thread. LibTorch's errors propagate as c10::Error; ModelError: router logits are not
// finite. Sources: Mixtral (Jiang et al. 2024), section 2.1, for routing and the experts' form;
// auxiliary loss: Switch Transformers (Fedus et al. 2021), eq. 4, averaged over blocks; z loss:
// ST-MoE (Zoph et al. 2022), eq. 5; capacity: GShard (Lepikhin et al. 2020), alg. 1. Deterministic:
// a stable sort orders tokens by expert, and every sum has a fixed order, for any routing. Experts
// are computed one after the other. One for which no rank has tokens is left out if ExpertUses
// allows it, else computed on an empty input: its gradients are zeros either way, and all ranks
// that have it use its parameters in the same order. The CPU waits for the router's counts once per
// block, and ranks exchange them. If ranks share a block's experts
// (trainer/model/token_exchange.h), each computes its own for the tokens of all of them. Shapes: N
// tokens, C = hidden, E experts, k = top_k.
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

// State shared by the experts of all blocks; outlives them.
struct BlockContext {
  RouterLosses* losses = nullptr;
  const TokenExchange* exchange = nullptr;
};

class Experts {
 public:
  // The experts of block `layer`.
  Experts(const GptShape& shape, uint32_t layer, const NamedTensors& parameters,
          const BlockContext& context);

  // x and the result: [B][T][C].
  at::Tensor Run(const at::Tensor& x);

 private:
  struct Routing {
    at::Tensor weights;           // [k][N], of x's dtype
    at::Tensor order;             // [k * N]: indices of (choice, token), by expert
    at::Tensor back;              // index of each (choice, token) in that order
    std::vector<int64_t> counts;  // [E]: tokens per expert
  };
  struct Expert {
    Affine gate, up, down;
  };

  // Routes x: [N][C], and attaches the router's losses to it.
  Routing Route(at::Tensor* x) const;
  // Throws ModelError if `bad` > 0 logits are not finite.
  void CheckLogits(int64_t bad) const;
  at::Tensor TermOf(const at::Tensor& logits, const at::Tensor& probabilities,
                    const at::Tensor& counts) const;
  // This rank's experts applied to [n][C] rows by expert; `used`: by the counts of all ranks.
  at::Tensor RunOwn(const at::Tensor& rows, const std::vector<int64_t>& counts,
                    const Used& used) const;
  // The experts of all ranks that share them, applied to [n][C] rows by expert.
  at::Tensor RunAll(const at::Tensor& given, const std::vector<int64_t>& counts) const;
  // The experts applied to [n][C] sorted tokens; zeros for those beyond an expert's capacity.
  at::Tensor RunSorted(const at::Tensor& sorted, const Routing& routing) const;

  const MoeSizes moe_;
  const ExpertPlace place_;
  const std::string path_;
  const double aux_, z_;  // for this block's terms
  Affine router_;
  std::vector<Expert> experts_;  // this rank's
  std::vector<uint32_t> units_;  // ExpertUnit of each
  RouterLosses* const losses_;
  const TokenExchange* const exchange_;
};

}  // namespace tidepool::trainer

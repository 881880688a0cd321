#include "trainer/model/loss/tiled_loss.h"

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tidepool::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A run of vocabulary entries.
struct Tile {
  int64_t begin = 0, size = 0;

  at::Tensor Of(const at::Tensor& head) const { return head.narrow(0, begin, size); }
  // Logits in fp32, in memory of their own: [R][size].
  at::Tensor Logits(const at::Tensor& hidden, const at::Tensor& head) const {
    return at::linear(hidden, Of(head)).to(at::kFloat);
  }
  // 1 for each row whose target is in the tile, else 0: [R], fp32; and where, for those: [R][1].
  at::Tensor Has(const at::Tensor& targets) const {
    return targets.ge(begin).bitwise_and_(targets.lt(begin + size)).to(at::kFloat);
  }
  at::Tensor PlaceOf(const at::Tensor& targets) const {
    return targets.sub(begin).clamp_(0, size - 1).unsqueeze(1);
  }
};

// Calls visit(tile) for each tile of the head.
template <typename Visit>
void ForEachTile(const at::Tensor& head, int64_t tiles, const Visit& visit) {
  const int64_t entries = head.size(0), most = (entries + tiles - 1) / tiles;
  for (int64_t begin = 0; begin < entries; begin += most)
    visit(Tile{begin, std::min(most, entries - begin)});
}

struct TiledLoss : torch::autograd::Function<TiledLoss> {
  // Function::apply has turned gradients off.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& head, const at::Tensor& targets, int64_t tiles) {
    const at::TensorOptions options = hidden.options().dtype(at::kFloat);
    at::Tensor most = at::full({hidden.size(0)}, -std::numeric_limits<float>::infinity(), options),
               sum = at::zeros({hidden.size(0)}, options), wanted = at::zeros_like(sum);

    ForEachTile(head, tiles, [&](const Tile& tile) {
      at::Tensor logits = tile.Logits(hidden, head);
      at::Tensor own = logits.gather(1, tile.PlaceOf(targets)).squeeze(1);
      wanted.add_(own.mul_(tile.Has(targets)));

      const at::Tensor more = at::maximum(most, logits.amax(1));
      logits.sub_(more.unsqueeze(1)).exp_();
      sum = sum.mul(most.sub(more).exp_()).add_(logits.sum(1));
      most = more;
    });

    // Apart, as their sum would lose bits where logits are large.
    const at::Tensor log_sum = sum.log_();
    context->save_for_backward({hidden, head, targets, most, log_sum});
    context->saved_data["tiles"] = tiles;
    return most.sub(wanted).add_(log_sum).mean();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &hidden = saved[0], &head = saved[1], &targets = saved[2],
                     most = saved[3].unsqueeze(1), log_sum = saved[4].unsqueeze(1);
    const at::Tensor of_row = gradients[0].div(hidden.size(0));
    at::Tensor for_hidden, for_head;
    if (context->needs_input_grad(0))
      for_hidden = at::zeros(hidden.sizes(), hidden.options().dtype(at::kFloat));
    if (context->needs_input_grad(1)) for_head = at::empty_like(head);

    ForEachTile(head, context->saved_data["tiles"].toInt(), [&](const Tile& tile) {
      at::Tensor softmax = tile.Logits(hidden, head).sub_(most).sub_(log_sum).exp_();
      softmax.scatter_add_(1, tile.PlaceOf(targets), tile.Has(targets).neg_().unsqueeze(1));
      const at::Tensor of_logits = softmax.mul_(of_row).to(hidden.scalar_type());

      if (for_hidden.defined()) for_hidden.add_(at::mm(of_logits, tile.Of(head)));
      if (!for_head.defined()) return;
      at::Tensor part = tile.Of(for_head);
      at::mm_out(part, of_logits.t(), hidden);
    });

    if (for_hidden.defined()) for_hidden = for_hidden.to(hidden.scalar_type());
    return {for_hidden, for_head, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor TiledCrossEntropy(const at::Tensor& hidden, const at::Tensor& head,
                             const at::Tensor& targets, int64_t tiles) {
  TORCH_CHECK(tiles >= 1 && tiles <= head.size(0), "a vocabulary of ", head.size(0),
              " entries has 1 to ", head.size(0), " tiles, not ", tiles);
  return TiledLoss::apply(hidden, head, targets, tiles);
}

}  // namespace tidepool::trainer

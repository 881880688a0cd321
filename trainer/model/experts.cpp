#include "trainer/model/experts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trainer/model/errors/model_error.h"
#include "trainer/model/moe/moe_layers.h"

namespace tidepool::trainer {
namespace {

// Counts for a traced model: routing as even as possible.
std::vector<int64_t> EvenCounts(int64_t choices, int64_t experts) {
  std::vector<int64_t> counts(static_cast<size_t>(experts), choices / experts);
  for (int64_t i = 0; i < choices % experts; ++i) ++counts[static_cast<size_t>(i)];
  return counts;
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct UsesHolder : torch::CustomClassHolder {
  UsesHolder(std::function<void(uint32_t)> tells, uint32_t of)
      : pass_by(std::move(tells)), unit(of) {}
  std::function<void(uint32_t)> pass_by;
  uint32_t unit;
};

// The place of an expert that is left out, in forward and in backward: no rows come, none go.
struct PlaceOfUnit : torch::autograd::Function<PlaceOfUnit> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& no_rows,
                            c10::intrusive_ptr<UsesHolder> holder) {
    holder->pass_by(holder->unit);
    context->saved_data["holder"] = c10::IValue::make_capsule(std::move(holder));
    return at::empty_like(no_rows);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder =
        c10::static_intrusive_pointer_cast<UsesHolder>(context->saved_data["holder"].toCapsule());
    holder->pass_by(holder->unit);
    return {gradients[0], at::Tensor()};
  }
};

at::Tensor PassBy(const at::Tensor& no_rows, const ExpertUses& uses, uint32_t unit) {
  return PlaceOfUnit::apply(no_rows, c10::make_intrusive<UsesHolder>(uses.pass_by, unit));
}

}  // namespace

Experts::Experts(const GptShape& shape, uint32_t layer, const NamedTensors& parameters,
                 const BlockContext& context)
    : moe_(MoeOf(shape, layer)),
      place_(context.exchange->PlaceOf(moe_.ep)),
      path_("model.layers." + std::to_string(layer) + "."),
      aux_(double{moe_.aux} / MoeBlocks(shape)),
      z_(double{moe_.z} / MoeBlocks(shape)),
      router_(FindAffine(parameters, path_ + "block_sparse_moe.gate")),
      losses_(context.losses),
      exchange_(context.exchange) {
  const uint32_t local = moe_.experts / place_.ranks;
  const uint32_t first = place_.rank * local;

  for (uint32_t i = first; i < first + local; ++i) {
    const std::string expert = path_ + "block_sparse_moe.experts." + std::to_string(i) + ".";
    experts_.push_back({.gate = FindAffine(parameters, expert + "w1"),
                        .up = FindAffine(parameters, expert + "w3"),
                        .down = FindAffine(parameters, expert + "w2")});
    units_.push_back(ExpertUnit(shape, layer, i));
  }
}

at::Tensor Experts::TermOf(const at::Tensor& logits, const at::Tensor& probabilities,
                           const at::Tensor& counts) const {
  const double tokens = static_cast<double>(logits.size(0));
  // E times the sum over experts of their token share times their mean probability.
  const at::Tensor aux = (counts.to(at::kFloat) * probabilities.mean(0)).sum() *
                         (aux_ * static_cast<double>(moe_.experts) / tokens);
  if (z_ == 0) return aux;
  // The log-sum-exp is what log_softmax subtracts from each logit.
  const at::Tensor taken = logits.select(1, 0) - at::log_softmax(logits, -1).select(1, 0);
  return aux + taken.square().mean() * z_;
}

void Experts::CheckLogits(int64_t bad) const {
  if (bad == 0) return;
  throw ModelError(Status(ErrorId::kNonFinite, std::to_string(bad) + " router logits of " + path_ +
                                                   "block_sparse_moe are not numbers")
                       .Why("the weights are damaged, or training diverged"));
}

Experts::Routing Experts::Route(at::Tensor* x) const {
  const int64_t tokens = x->size(0), experts = moe_.experts, top = moe_.top_k;
  const at::Tensor logits = router_.Linear(*x, 0).to(at::kFloat);
  const at::Tensor probabilities = at::softmax(logits, -1);
  const auto [largest, chosen] = at::topk(probabilities, top, -1);

  // First choices come before second ones, so that they get capacity first.
  Routing routing;
  routing.weights = (largest / largest.sum(-1, /*keepdim=*/true)).to(x->scalar_type()).t();
  const at::Tensor by_choice = chosen.t().reshape({-1});
  routing.order = std::get<1>(at::sort(by_choice, /*stable=*/true, 0, /*descending=*/false));
  routing.back = at::empty_like(routing.order)
                     .scatter_(0, routing.order, at::arange(tokens * top, routing.order.options()));

  at::Tensor counts;
  if (x->is_meta()) {
    routing.counts = EvenCounts(tokens * top, experts);
    counts = at::empty({experts}, by_choice.options());
  } else {
    counts = at::bincount(by_choice, {}, experts);
    // A single copy, because the CPU waits for it.
    const at::Tensor bad = at::isfinite(logits).logical_not().sum().view({1});
    const at::Tensor here = at::cat({counts, bad}).cpu();
    routing.counts.assign(here.const_data_ptr<int64_t>(), here.const_data_ptr<int64_t>() + experts);
    CheckLogits(here[experts].item<int64_t>());
  }

  if (aux_ > 0 || z_ > 0) *x = losses_->Attach(*x, TermOf(logits, probabilities, counts));
  return routing;
}

at::Tensor Experts::RunOwn(const at::Tensor& rows, const std::vector<int64_t>& counts,
                           const Used& used) const {
  const ExpertUses& uses = exchange_->uses();
  const bool leaves_out = uses.tell && !rows.is_meta() && uses.tell(units_, used);
  std::vector<at::Tensor> results;
  int64_t begin = 0;

  for (size_t i = 0; i < experts_.size(); ++i) {
    const Expert& expert = experts_[i];
    const at::Tensor in = rows.narrow(0, begin, counts[i]);
    if (leaves_out && !used.here[i]) {
      results.push_back(PassBy(in, uses, units_[i]));
      continue;
    }

    const at::Tensor wide = at::silu(expert.gate.Linear(in, 0)) * expert.up.Linear(in, 0);
    results.push_back(expert.down.Linear(wide, 0));
    begin += counts[i];
  }
  return at::cat(results, 0);
}

at::Tensor Experts::RunSorted(const at::Tensor& sorted, const Routing& routing) const {
  const double mean = static_cast<double>(sorted.size(0)) / moe_.experts;
  const auto room =
      moe_.capacity > 0 ? static_cast<int64_t>(std::ceil(moe_.capacity * mean)) : sorted.size(0);
  std::vector<int64_t> kept;
  std::vector<at::Tensor> with_room;
  int64_t begin = 0;

  for (const int64_t count : routing.counts) {
    kept.push_back(std::min(count, room));
    with_room.push_back(sorted.narrow(0, begin, kept.back()));
    begin += count;
  }

  const bool drops = kept != routing.counts;
  const at::Tensor given = drops ? at::cat(with_room, 0) : sorted;
  const at::Tensor results = RunAll(given, kept);
  if (!drops) return results;

  std::vector<at::Tensor> all;
  begin = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    all.push_back(results.narrow(0, begin, kept[i]));
    all.push_back(at::zeros({routing.counts[i] - kept[i], sorted.size(1)}, sorted.options()));
    begin += kept[i];
  }
  return at::cat(all, 0);
}

at::Tensor Experts::RunAll(const at::Tensor& given, const std::vector<int64_t>& counts) const {
  const TokenExchange::Agreed agreed = exchange_->Agree(place_, counts, given.is_meta());
  if (place_.ranks == 1) return RunOwn(given, counts, agreed.used);
  const TokenExchange::Visit visit = exchange_->Send(place_, given, counts, agreed);
  return exchange_->SendBack(RunOwn(visit.rows, visit.counts, agreed.used), visit);
}

at::Tensor Experts::Run(const at::Tensor& x) {
  const int64_t hidden = x.size(-1), top = moe_.top_k;
  at::Tensor tokens = x.reshape({-1, hidden});
  const int64_t count = tokens.size(0);
  const Routing routing = Route(&tokens);

  // Each token once per choice; the backward of a permutation adds nothing, so its order is fixed.
  const at::Tensor sorted = tokens.expand({top, count, hidden})
                                .reshape({top * count, hidden})
                                .index_select(0, routing.order);
  const at::Tensor by_choice =
      RunSorted(sorted, routing).index_select(0, routing.back).view({top, count, hidden});
  return (by_choice * routing.weights.unsqueeze(-1)).sum(0).view(x.sizes());
}

}  // namespace tidepool::trainer

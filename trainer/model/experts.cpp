#include "trainer/model/experts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>

#include "trainer/model/not_numbers.h"

namespace tidepool::trainer {
namespace {

// What a model that is only traced is routed like: as evenly as can be.
std::vector<int64_t> EvenCounts(int64_t choices, int64_t experts) {
  std::vector<int64_t> counts(static_cast<size_t>(experts), choices / experts);
  for (int64_t i = 0; i < choices % experts; ++i) ++counts[static_cast<size_t>(i)];
  return counts;
}

}  // namespace

Experts::Experts(const GptShape& shape, uint32_t blocks, const NamedTensors& parameters,
                 const std::string& path, RouterLosses* losses)
    : moe_(shape.moe),
      path_(path),
      aux_(double{shape.moe.aux} / blocks),
      z_(double{shape.moe.z} / blocks),
      router_(FindAffine(parameters, path + "block_sparse_moe.gate")),
      losses_(losses) {
  for (uint32_t i = 0; i < moe_.experts; ++i) {
    const std::string expert = path + "block_sparse_moe.experts." + std::to_string(i) + ".";

    experts_.push_back({.gate = FindAffine(parameters, expert + "w1"),
                        .up = FindAffine(parameters, expert + "w3"),
                        .down = FindAffine(parameters, expert + "w2")});
  }
}

at::Tensor Experts::TermOf(const at::Tensor& logits, const at::Tensor& probabilities,
                           const at::Tensor& counts) const {
  const double tokens = static_cast<double>(logits.size(0));
  // E times the sum over experts of their share of tokens and their mean probability.
  const at::Tensor aux = (counts.to(at::kFloat) * probabilities.mean(0)).sum() *
                         (aux_ * static_cast<double>(moe_.experts) / tokens);
  if (z_ == 0) return aux;
  // The logarithm of the sum of exponentials is what softmax takes off each logit.
  const at::Tensor taken = logits.select(1, 0) - at::log_softmax(logits, -1).select(1, 0);
  return aux + taken.square().mean() * z_;
}

void Experts::CheckLogits(int64_t bad) const {
  if (bad == 0) return;
  throw NotNumbers({__func__, __FILE__, __LINE__}, std::to_string(bad) + " router logits of " +
                                                       path_ + "block_sparse_moe are not numbers");
}

Experts::Routing Experts::Route(at::Tensor* x) const {
  const int64_t tokens = x->size(0), experts = moe_.experts, top = moe_.top_k;
  const at::Tensor logits = router_.Linear(*x, 0).to(at::kFloat);
  const at::Tensor probabilities = at::softmax(logits, -1);
  const auto [largest, chosen] = at::topk(probabilities, top, -1);

  // First choices come before second ones, so that capacity is given to them first.
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
    // One copy, because the CPU waits for it.
    const at::Tensor bad = at::isfinite(logits).logical_not().sum().view({1});
    const at::Tensor here = at::cat({counts, bad}).cpu();
    routing.counts.assign(here.const_data_ptr<int64_t>(), here.const_data_ptr<int64_t>() + experts);
    CheckLogits(here[experts].item<int64_t>());
  }

  if (aux_ > 0 || z_ > 0) *x = losses_->Attach(*x, TermOf(logits, probabilities, counts));
  return routing;
}

at::Tensor Experts::RunSorted(const at::Tensor& sorted, const Routing& routing) const {
  const double mean = static_cast<double>(sorted.size(0)) / moe_.experts;
  const auto room =
      moe_.capacity > 0 ? static_cast<int64_t>(std::ceil(moe_.capacity * mean)) : sorted.size(0);
  std::vector<at::Tensor> results;
  int64_t begin = 0;

  for (size_t i = 0; i < experts_.size(); ++i) {
    const Expert& expert = experts_[i];
    const int64_t kept = std::min(routing.counts[i], room);
    const at::Tensor in = sorted.narrow(0, begin, kept);
    const at::Tensor wide = at::silu(expert.gate.Linear(in, 0)) * expert.up.Linear(in, 0);
    results.push_back(expert.down.Linear(wide, 0));
    if (kept < routing.counts[i])
      results.push_back(at::zeros({routing.counts[i] - kept, sorted.size(1)}, sorted.options()));
    begin += routing.counts[i];
  }
  return at::cat(results, 0);
}

at::Tensor Experts::Run(const at::Tensor& x) {
  const int64_t hidden = x.size(-1), top = moe_.top_k;
  at::Tensor tokens = x.reshape({-1, hidden});
  const int64_t count = tokens.size(0);
  const Routing routing = Route(&tokens);

  // Each token once a choice; a permutation's backward adds nothing up, so its order is fixed.
  const at::Tensor sorted = tokens.expand({top, count, hidden})
                                .reshape({top * count, hidden})
                                .index_select(0, routing.order);
  const at::Tensor by_choice =
      RunSorted(sorted, routing).index_select(0, routing.back).view({top, count, hidden});
  return (by_choice * routing.weights.unsqueeze(-1)).sum(0).view(x.sizes());
}

}  // namespace tidepool::trainer

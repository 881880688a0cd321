#include "trainer/model/token_exchange.h"

#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trainer/model/moe/moe_layers.h"

namespace tidepool::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t SumOf(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

struct MoverHolder : torch::CustomClassHolder {
  explicit MoverHolder(std::shared_ptr<const TokenMover> kept) : mover(std::move(kept)) {}
  std::shared_ptr<const TokenMover> mover;
};

at::Tensor Move(const TokenMover& mover, const at::Tensor& rows, const std::vector<int64_t>& out,
                const std::vector<int64_t>& in) {
  if (rows.is_meta()) return at::empty({SumOf(in), rows.size(1)}, rows.options());
  return mover.rows(rows.contiguous(), out, in);
}

// Backward moves gradients in reverse.
struct MoveRows : torch::autograd::Function<MoveRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            c10::intrusive_ptr<MoverHolder> holder, std::vector<int64_t> out,
                            std::vector<int64_t> in) {
    at::Tensor moved = Move(*holder->mover, rows, out, in);
    context->saved_data["out"] = std::move(out);
    context->saved_data["in"] = std::move(in);
    context->saved_data["mover"] = c10::IValue::make_capsule(std::move(holder));
    return moved;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder =
        c10::static_intrusive_pointer_cast<MoverHolder>(context->saved_data["mover"].toCapsule());
    const std::vector<int64_t> out = context->saved_data["out"].toIntVector(),
                               in = context->saved_data["in"].toIntVector();
    return {Move(*holder->mover, gradients[0], in, out), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Reorders rows that arrive by rank, then by expert, to expert order: from[r][j] rows of rank r for
// expert j.
std::vector<int64_t> PlacesByExpert(const std::vector<int64_t>& from, size_t ranks,
                                    size_t experts) {
  std::vector<int64_t> begins(from.size());
  std::exclusive_scan(from.begin(), from.end(), begins.begin(), int64_t{0});
  std::vector<int64_t> places;
  places.reserve(static_cast<size_t>(SumOf(from)));

  for (size_t expert = 0; expert < experts; ++expert) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      const size_t at = rank * experts + expert;
      for (int64_t i = 0; i < from[at]; ++i) places.push_back(begins[at] + i);
    }
  }
  return places;
}

}  // namespace

ExpertPlace TokenExchange::PlaceOf(uint32_t ranks) const {
  return rank_ ? PlaceAmong(ranks, *rank_) : ExpertPlace();
}

TokenExchange::Agreed TokenExchange::Agree(const ExpertPlace& place,
                                           const std::vector<int64_t>& counts, bool is_meta) const {
  const size_t all = counts.size(), experts = all / place.ranks;
  const bool asks = !is_meta && mover_->counts != nullptr;
  std::vector<int64_t> of_ranks;  // [world][all]; without others, each rank of the sharing ones
  if (asks) {
    of_ranks = mover_->counts(counts);
  } else {
    for (uint32_t rank = 0; rank < place.ranks; ++rank)
      of_ranks.insert(of_ranks.end(), counts.begin(), counts.end());
  }

  Agreed agreed;
  agreed.used = {std::vector<bool>(experts, is_meta), std::vector<bool>(experts, is_meta)};

  const size_t first_sharer = asks ? place.first : 0;
  for (size_t rank = 0; rank < of_ranks.size() / all; ++rank) {
    const bool shares = rank >= first_sharer && rank < first_sharer + place.ranks;
    for (size_t i = 0; i < all; ++i) {
      const int64_t count = of_ranks[rank * all + i];
      const bool is_own = i / experts == place.rank;
      if (shares && is_own) agreed.from.push_back(count);

      if (count == 0) continue;
      agreed.used.anywhere[i % experts] = true;
      if (is_own) agreed.used.here[i % experts] = true;
    }
  }
  return agreed;
}

TokenExchange::Visit TokenExchange::Send(const ExpertPlace& place, const at::Tensor& sorted,
                                         const std::vector<int64_t>& counts,
                                         const Agreed& agreed) const {
  const size_t ranks = place.ranks, experts = counts.size() / ranks;
  const std::vector<int64_t>& from = agreed.from;
  Visit visit;
  visit.counts.assign(experts, 0);

  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto width = static_cast<int64_t>(experts), first = static_cast<int64_t>(rank) * width;
    visit.out.push_back(
        std::accumulate(counts.begin() + first, counts.begin() + first + width, int64_t{0}));
    visit.in.push_back(
        std::accumulate(from.begin() + first, from.begin() + first + width, int64_t{0}));
    for (size_t i = 0; i < experts; ++i) visit.counts[i] += from[rank * experts + i];
  }

  const at::TensorOptions whole = sorted.options().dtype(at::kLong);
  visit.places = sorted.is_meta() ? at::empty({SumOf(from)}, whole)
                                  : at::tensor(PlacesByExpert(from, ranks, experts), whole);
  const at::Tensor came =
      MoveRows::apply(sorted, c10::make_intrusive<MoverHolder>(mover_), visit.out, visit.in);
  visit.rows = came.index_select(0, visit.places);
  return visit;
}

at::Tensor TokenExchange::SendBack(const at::Tensor& results, const Visit& visit) const {
  const at::Tensor back =
      at::empty_like(visit.places)
          .scatter_(0, visit.places, at::arange(visit.places.numel(), visit.places.options()));
  return MoveRows::apply(results.index_select(0, back), c10::make_intrusive<MoverHolder>(mover_),
                         visit.in, visit.out);
}

}  // namespace tidepool::trainer

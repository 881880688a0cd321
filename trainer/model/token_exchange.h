// TokenExchange: tokens go to the ranks that have their experts, and come back, where the experts
// of a block are spread over ranks (expert parallelism; GShard, Lepikhin et al. 2020, section 3).
//
// The model's thread. All ranks that share experts call it at the same places in the same order: in
// forward, and the other way round in backward. How rows get from rank to rank is the caller's
// (TokenMover); on the meta device nothing moves, and every rank is thought to send alike.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

// Moves bytes between the ranks that share experts: both calls wait for the other ranks. Errors are
// thrown as ModelError.
struct TokenMover {
  // Gives each rank its equal part of `counts`: [ranks][n], and returns what they gave: the same.
  std::function<std::vector<int64_t>(const std::vector<int64_t>& counts)> counts = {};
  // rows: contiguous [sum of out][C], by rank; returns [sum of in][C].
  std::function<at::Tensor(const at::Tensor& rows, const std::vector<int64_t>& out,
                           const std::vector<int64_t>& in)>
      rows = {};
};

class TokenExchange {
 public:
  TokenExchange(ExpertPlace place, TokenMover mover)
      : place_(place), mover_(std::make_shared<const TokenMover>(std::move(mover))) {}

  const ExpertPlace& place() const { return place_; }

  // Tokens that were sent to this rank's experts, and how they go back.
  struct Visit {
    at::Tensor rows;               // [n][C], by expert
    std::vector<int64_t> counts;   // of each of this rank's experts
    at::Tensor places;             // where each row was when it came
    std::vector<int64_t> out, in;  // rows that this rank gave to each rank, and took
  };
  // `sorted`: [n][C], this rank's tokens by expert; `counts`: [E], how many each expert is given.
  Visit Send(const at::Tensor& sorted, const std::vector<int64_t>& counts) const;
  // `results`: of the visit's rows, in their order. Returns them in the order of `sorted`.
  at::Tensor SendBack(const at::Tensor& results, const Visit& visit) const;

 private:
  ExpertPlace place_;
  std::shared_ptr<const TokenMover> mover_;
};

// A rank that has all experts.
inline TokenExchange NoExchange() {
  return {ExpertPlace(), TokenMover()};
}

}  // namespace tidepool::trainer

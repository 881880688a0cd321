// TokenExchange: sends tokens to the ranks that have their experts, and results back, if ranks
// share a block's experts (expert parallelism; GShard, Lepikhin et al. 2020, section 3).
//
// The model's thread. All ranks that share experts call it in the same order: in forward, and in
// reverse in backward. The caller moves the rows between ranks (TokenMover); on the meta device
// nothing moves, and every rank is assumed to send the same.
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
  // Sends each rank its part of `counts`: [ranks][n]; returns the received parts, likewise.
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

  // Tokens sent to this rank's experts, and what sending them back needs.
  struct Visit {
    at::Tensor rows;               // [n][C], by expert
    std::vector<int64_t> counts;   // per expert of this rank
    at::Tensor places;             // position of each row on arrival
    std::vector<int64_t> out, in;  // rows sent to, and received from, each rank
  };
  // `sorted`: [n][C], this rank's tokens by expert; `counts`: [E], tokens per expert.
  Visit Send(const at::Tensor& sorted, const std::vector<int64_t>& counts) const;
  // `results`: for the visit's rows, in their order. Returns them in the order of `sorted`.
  at::Tensor SendBack(const at::Tensor& results, const Visit& visit) const;

 private:
  ExpertPlace place_;
  std::shared_ptr<const TokenMover> mover_;
};

// For a rank that has all experts.
inline TokenExchange NoExchange() {
  return {ExpertPlace(), TokenMover()};
}

}  // namespace tidepool::trainer

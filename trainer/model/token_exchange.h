// TokenExchange: which experts of a block have tokens, of all ranks; and, if ranks share a block's
// experts, sends tokens to the ranks that have them, and results back (expert parallelism; GShard,
// Lepikhin et al. 2020, section 3).
//
// The model's thread. All ranks call it in the same order: in forward, and in reverse in backward.
// The caller moves counts and rows between ranks (TokenMover), and brings the parameters of experts
// (ExpertUses); on the meta device nothing moves, and every rank is assumed to send the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

// Moves bytes between ranks: both calls wait for the others. Errors are thrown as ModelError.
struct TokenMover {
  // Sends `counts`, [E], to all ranks of the run; returns those of all, [world][E]. Null: this rank
  // is the only one.
  std::function<std::vector<int64_t>(const std::vector<int64_t>& counts)> counts = {};
  // Between the out.size() neighbouring ranks that share a block's experts. rows: contiguous [sum
  // of out][C], by rank; returns [sum of in][C].
  std::function<at::Tensor(const at::Tensor& rows, const std::vector<int64_t>& out,
                           const std::vector<int64_t>& in)>
      rows = {};
};

// Which experts of a block have tokens, by place among those of one rank.
struct Used {
  std::vector<bool> here;      // this rank's: some rank has tokens for it
  std::vector<bool> anywhere;  // that of some rank
};

// For whoever brings the parameters of experts as they are used. Without functions nothing is left
// out.
struct ExpertUses {
  // Called before experts run, with the units (ExpertUnit) of this rank's experts of a block. True:
  // those not used need not be computed.
  std::function<bool(const std::vector<uint32_t>& units, const Used& used)> tell = {};
  // Called where an expert that is not computed would have been: in forward, and in backward.
  std::function<void(uint32_t unit)> pass_by = {};
};

class TokenExchange {
 public:
  // `rank`: this one's number in the run, if ranks share experts as the model says; nullopt: this
  // rank has all experts.
  TokenExchange(std::optional<uint32_t> rank, TokenMover mover, ExpertUses uses = {})
      : rank_(rank),
        mover_(std::make_shared<const TokenMover>(std::move(mover))),
        uses_(std::move(uses)) {}

  // This rank's place among `ranks` ranks that share a block's experts.
  ExpertPlace PlaceOf(uint32_t ranks) const;
  const ExpertUses& uses() const { return uses_; }
  // The same exchange with other uses.
  TokenExchange With(ExpertUses uses) const {
    TokenExchange other = *this;
    other.uses_ = std::move(uses);
    return other;
  }

  // What all ranks have for this rank's experts.
  struct Agreed {
    std::vector<int64_t> from;  // [sharing ranks][experts]: tokens that each of them sends
    Used used;
  };
  // `place`: PlaceOf the block's ranks. `counts`: [E], this rank's tokens per expert. `is_meta`:
  // nothing is asked.
  Agreed Agree(const ExpertPlace& place, const std::vector<int64_t>& counts, bool is_meta) const;

  // Tokens sent to this rank's experts, and what sending them back needs.
  struct Visit {
    at::Tensor rows;               // [n][C], by expert
    std::vector<int64_t> counts;   // per expert of this rank
    at::Tensor places;             // position of each row on arrival
    std::vector<int64_t> out, in;  // rows sent to, and received from, each rank
  };
  // `sorted`: [n][C], this rank's tokens by expert; `counts`: [E], tokens per expert.
  Visit Send(const ExpertPlace& place, const at::Tensor& sorted, const std::vector<int64_t>& counts,
             const Agreed& agreed) const;
  // `results`: for the visit's rows, in their order. Returns them in the order of `sorted`.
  at::Tensor SendBack(const at::Tensor& results, const Visit& visit) const;

 private:
  std::optional<uint32_t> rank_;
  std::shared_ptr<const TokenMover> mover_;
  ExpertUses uses_;
};

// For a rank that has all experts.
inline TokenExchange NoExchange() {
  return {std::nullopt, TokenMover()};
}

}  // namespace tidepool::trainer

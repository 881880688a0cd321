// OperationCheck: finds out whether all ranks of a group are in the same operation, from each
// rank's statement about its own, before any of the operation's bytes move.
//
// One thread at a time. Memory: two small arrays in this object; the caller all-gathers them.
// All ranks see the same statements, so all come to the same verdict: either every rank goes on, or
// none does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "trainer/comm/operation_name.h"

namespace tidepool::trainer {

class OperationCheck {
 public:
  // `out`, `in`: bytes sent to, and expected from, each rank of the group, by rank.
  OperationCheck(const OperationTag& tag, const std::vector<uint64_t>& out,
                 const std::vector<uint64_t>& in);

  // This rank's statement, [statement_bytes]; all ranks of a group have equal sizes.
  std::byte* own() { return reinterpret_cast<std::byte*>(own_.data()); }
  uint64_t statement_bytes() const { return own_.size() * sizeof(uint64_t); }
  // All ranks' statements, [world][statement_bytes], after the caller has gathered them here.
  std::byte* all() { return reinterpret_cast<std::byte*>(all_.data()); }

  // Call it when all statements are there. Errors: kCollectiveFailed, naming the first two ranks
  // that differ and the operation of each.
  Status Verdict() const;

 private:
  OperationTag TagOfRank(uint64_t rank) const;
  // The bytes that `rank` sends to `other` (`out`), or expects from it.
  uint64_t BytesOfRank(uint64_t rank, uint64_t other, bool out) const;

  uint64_t world_;
  std::vector<uint64_t> own_, all_;  // tag, out, in
};

}  // namespace tidepool::trainer

// OperationCheck: finds out whether all ranks of a group are in the same operation, from what each
// says of its own, before any of the operation's bytes move.
//
// One thread at a time. Memory: two small arrays, kept by this object: the caller gathers them
// between the ranks.
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
  // `out`, `in`: bytes that this rank sends to each rank and expects from each, by rank; both have
  // an element for every rank of the group.
  OperationCheck(const OperationTag& tag, const std::vector<uint64_t>& out,
                 const std::vector<uint64_t>& in);

  // This rank's statement, [statement_bytes]; all ranks of a group have equal sizes.
  std::byte* own() { return reinterpret_cast<std::byte*>(own_.data()); }
  uint64_t statement_bytes() const { return own_.size() * sizeof(uint64_t); }
  // All ranks' statements, [world][statement_bytes], once they were gathered here.
  std::byte* all() { return reinterpret_cast<std::byte*>(all_.data()); }

  // Call it when all statements are there. Errors: kCollectiveFailed: names the first two ranks
  // that differ, and the operation of each.
  Status Verdict() const;

 private:
  OperationTag TagOfRank(uint64_t rank) const;
  // What `rank` sends to `other`, or expects from it.
  uint64_t BytesOfRank(uint64_t rank, uint64_t other, bool out) const;

  uint64_t world_;
  std::vector<uint64_t> own_, all_;  // tag, out, in
};

}  // namespace tidepool::trainer

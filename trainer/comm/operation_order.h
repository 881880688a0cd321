// OperationOrder: records the operations that a rank has started, for groups whose bytes no CPU
// sees (NCCL): once a pass the ranks compare a hash of their order.
//
// One thread (the trainer's main thread). Memory: 64 bytes per operation between two comparisons,
// for at most kOperationsKept of them; the hash covers all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "trainer/comm/collective.h"
#include "trainer/comm/operation_name.h"

namespace tidepool::trainer {

inline constexpr uint64_t kOperationsKept = 65'536;

class OperationOrder {
 public:
  // Records this rank's next operation, of `bytes`.
  void Add(const OperationTag& tag, uint64_t bytes);

  // Compares the operations started since the last call with those of the other ranks, through
  // their group on the host; waits for them. Errors: kCollectiveFailed (from that group, or because
  // the orders differ: names the first difference and what the two ranks started there).
  Status Compare(Collective* host);

 private:
  struct Entry {
    uint64_t bytes = 0;
    OperationTag tag{};
    uint32_t unused = 0;  // so that all bytes are defined
    bool operator==(const Entry&) const = default;
  };

  // Gathers all ranks' entries, and names the first difference.
  Status FirstDifference(Collective* host, uint64_t most) const;

  std::vector<Entry> entries_;  // the first kOperationsKept
  uint64_t count_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace tidepool::trainer

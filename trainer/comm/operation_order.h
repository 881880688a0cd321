// OperationOrder: the operations that a rank has started in a group, for groups whose bytes move
// where no CPU sees them (NCCL): ranks compare a hash of their order once a pass.
//
// One thread (the trainer's main thread). Memory: 64 bytes an operation between two comparisons,
// for kOperationsKept of them at most; the hash covers all.
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
  // The next operation of this rank moves `bytes`.
  void Add(const OperationTag& tag, uint64_t bytes);

  // Compares what was started since the last call with the other ranks, through their group on the
  // host; waits for them. Errors: kCollectiveFailed (theirs; or the orders differ: names the first
  // difference, and what the two ranks started there).
  Status Compare(Collective* host);

 private:
  struct Entry {
    uint64_t bytes = 0;
    OperationTag tag{};
    uint32_t unused = 0;  // so that no byte is undefined
    bool operator==(const Entry&) const = default;
  };

  // Gathers all ranks' entries, and names the first difference.
  Status FirstDifference(Collective* host, uint64_t most) const;

  std::vector<Entry> entries_;  // the first kOperationsKept
  uint64_t count_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace tidepool::trainer

// FaultPlan: which kinds of faults one seed of the simulation makes; at least five of them.
//
// A plain value.
#pragma once

#include <cstdint>
#include <string>

#include "base/random.h"

namespace tidepool::memserver {

enum class Fault : uint32_t {
  kRankDeath,
  kServerDeath,         // between two turns
  kServerDeathAtPoint,  // inside a turn or a worker's piece
  // Alone, then the server starts another one; a server that dies before that, or with its keeper,
  // loses the states.
  kKeeperDeath,
  kDeathInRecovery,  // up to five times in a row; follows one of the two above
  kStall,            // the server, ranks, workers or copies do nothing for long
  kDuplicate,        // ranks that come back send requests again that were answered
  kReordering,       // copies and pieces of work end in any order
  kNonFinite,        // of gradients
  kTightPool,        // jobs are refused for lack of room
  kLeaseEnd,         // short leases, or none
  kClockJump,
  kHandOver,  // the server is replaced on purpose
  kSave,      // saves that take long; no fault, but they hold updates up
  kCount,
};
inline constexpr uint32_t kFaultsMin = 5;

const char* NameOf(Fault fault);

class FaultPlan {
 public:
  explicit FaultPlan(SplitMix64* random);
  bool Has(Fault fault) const { return (armed_ >> static_cast<uint32_t>(fault) & 1) != 0; }
  bool KillsServers() const { return Has(Fault::kServerDeath) || Has(Fault::kServerDeathAtPoint); }
  uint32_t size() const;
  std::string Text() const;

 private:
  uint32_t armed_ = 0;
};

}  // namespace tidepool::memserver

// GroupSpec: which ranks of a run make a data-parallel group.
//
// Any thread; a value type.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/comm/meeting/rendezvous.h"

namespace tidepool::trainer {

struct GroupSpec {
  std::string name;             // unique in the run; equal on all members
  std::vector<uint32_t> ranks;  // of the run, ascending; the position is the rank within the group
};

// All ranks of the run.
inline GroupSpec WholeRun(const Rendezvous& meet) {
  GroupSpec spec{.name = "run", .ranks = std::vector<uint32_t>(meet.world)};
  for (uint32_t rank = 0; rank < meet.world; ++rank) spec.ranks[rank] = rank;
  return spec;
}

}  // namespace tidepool::trainer

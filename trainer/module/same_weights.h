// CheckSameWeights: whether the ranks of a new job begin with the same initial weights, of which
// each hands in its share alone.
//
// The trainer's main thread; collective.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/comm/collective.h"

namespace tidepool::trainer {

// What a rank has of one trained parameter.
struct InitialWeights {
  std::string name;
  uint32_t crc = 0;  // CRC-32C of all of its fp32 values
};

// All ranks of `world` give the same names in the same order. Errors: kUsageError (names the first
// parameter that differs, on all ranks alike), kCollectiveFailed.
Status CheckSameWeights(Collective* world, const std::vector<InitialWeights>& weights);

}  // namespace tidepool::trainer

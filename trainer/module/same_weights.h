// CheckSameWeights: checks that the ranks of a new job, each of which puts only its shards, start
// with the same initial weights.
//
// The trainer's main thread; collective.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/comm/collective.h"

namespace tidepool::trainer {

// A rank's initial values of one trained parameter.
struct InitialWeights {
  std::string name;
  uint32_t crc = 0;  // CRC-32C of all of its fp32 values
};

// All ranks of `world` pass the same names in the same order. Errors: kUsageError (names the first
// parameter that differs, the same on all ranks), kCollectiveFailed.
Status CheckSameWeights(Collective* world, const std::vector<InitialWeights>& weights);

}  // namespace tidepool::trainer

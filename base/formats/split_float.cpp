#include "base/formats/split_float.h"

namespace tidepool {

void SplitWeights(const float* from, uint16_t* high, int16_t* rest, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const SplitFloat halves = SplitWeight(from[i]);
    high[i] = halves.high;
    rest[i] = halves.rest;
  }
}

}  // namespace tidepool

// SplitMix64: a small seeded generator for decisions that every rank must make alike. Same seed, same numbers, on every machine.
//
// One thread per object.
#pragma once

#include <cstdint>

namespace tidepool {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  // Uniform in [0, bound); bound > 0.
  uint64_t Below(uint64_t bound);
  // Uniform in [0, 1).
  double Unit();

 private:
  uint64_t state_;
};

}  // namespace tidepool

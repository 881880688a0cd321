// SplitMix64: a small seeded generator for decisions that every rank must make identically. Same
// seed, same numbers, on every machine.
//
// One thread per object.
#pragma once

#include <cstdint>

namespace tidepool {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  // The next 64 bits.
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound); bound > 0. Multiply-shift, with a bias below bound / 2^64.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<Uint128>(Next()) * bound) >> 64);
  }
  // Uniform in [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  __extension__ typedef unsigned __int128 Uint128;
  uint64_t state_;
};

}  // namespace tidepool

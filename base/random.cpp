#include "base/random.h"

namespace tidepool {
namespace {
__extension__ typedef unsigned __int128 Uint128;
}  // namespace

uint64_t SplitMix64::Next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

uint64_t SplitMix64::Below(uint64_t bound) {
  // Multiply-shift maps 64 random bits to [0, bound) with a bias below bound / 2^64.
  return static_cast<uint64_t>((static_cast<Uint128>(Next()) * bound) >> 64);
}

double SplitMix64::Unit() {
  return static_cast<double>(Next() >> 11) * 0x1p-53;
}

}  // namespace tidepool

#include "trainer/model/gpt_init.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/random.h"
#include "trainer/model/lora.h"
#include "trainer/model/tiles/tile_places.h"

namespace tidepool::trainer {
namespace {

// FNV-1a, then mixed with the seed.
uint64_t KeyOf(const std::string& name, uint64_t seed) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char letter : name) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001B3ULL;
  return SplitMix64(hash ^ SplitMix64(seed).Next()).Next();
}

// Two independent standard normals from a pair of uniform numbers (Box-Muller transform); `pair` is
// a counter.
struct NormalPair {
  double even, odd;
};

NormalPair Normals(uint64_t key, uint64_t pair) {
  SplitMix64 random(key ^ (pair * 0x9E3779B97F4A7C15ULL));
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.Unit()));  // 1 - u is in (0, 1]
  const double angle = 2.0 * std::numbers::pi * random.Unit();
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

void FillNormal(uint64_t key, double deviation, uint64_t begin, std::span<float> out) {
  for (uint64_t i = 0; i < out.size();) {
    const uint64_t element = begin + i;
    const NormalPair normal = Normals(key, element / 2);
    if (element % 2 == 0) {
      out[i++] = static_cast<float>(deviation * normal.even);
      if (i == out.size()) break;
    }
    out[i++] = static_cast<float>(deviation * normal.odd);
  }
}

// The initial values of a parameter of a model without tiles.
void InitWhole(const std::string& name, const GptShape& shape, uint64_t seed, uint64_t begin,
               std::span<float> out) {
  const bool is_norm = name.find("ln_") != std::string::npos || name.ends_with("norm.weight");
  if (name.ends_with(".bias") || is_norm) {
    std::fill(out.begin(), out.end(), name.ends_with(".bias") ? 0.0F : 1.0F);
    return;
  }

  if (name.ends_with(".lora_B.weight")) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  if (name.ends_with(".lora_A.weight")) {
    FillNormal(KeyOf(name, seed), 1 / std::sqrt(3.0 * AdapterColumns(name, shape)), begin, out);
    return;
  }

  const bool ends_residual_branch =
      name.ends_with("c_proj.weight") || name.ends_with("o_proj.weight") ||
      name.ends_with("down_proj.weight") || name.ends_with(".w2.weight");
  FillNormal(KeyOf(name, seed), ends_residual_branch ? 0.02 / std::sqrt(2.0 * shape.layers) : 0.02,
             begin, out);
}

}  // namespace

void InitGptParameter(const std::string& name, const GptShape& shape, uint64_t seed, uint64_t begin,
                      std::span<float> out) {
  const TilePlace place = PlaceOfTile(name, shape);
  InitWhole(place.whole, shape, seed, place.begin + begin, out);
}

}  // namespace tidepool::trainer

#include "trainer/model/moe/moe_layers.h"

#include <algorithm>
#include <set>

namespace tidepool::trainer {

MoeSizes MoeOf(const GptShape& shape, uint32_t layer) {
  if (!shape.moe_layers.empty()) return shape.moe_layers[layer];
  const bool has = shape.moe.on() && (layer + 1) % shape.moe.every == 0;
  return has ? shape.moe : MoeSizes();
}

uint32_t MoeBlocks(const GptShape& shape) {
  if (shape.moe_layers.empty()) return shape.moe.on() ? shape.layers / shape.moe.every : 0;
  return static_cast<uint32_t>(std::count_if(shape.moe_layers.begin(), shape.moe_layers.end(),
                                             [](const MoeSizes& moe) { return moe.on(); }));
}

bool IsMixtral(const GptShape& shape) {
  return shape.moe_layers.empty() && shape.moe.on() && shape.moe.every == 1 && !shape.moe.residual;
}

std::vector<uint32_t> ExpertDegrees(const GptShape& shape) {
  std::set<uint32_t> degrees;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const MoeSizes moe = MoeOf(shape, layer);
    if (moe.on() && moe.ep > 1) degrees.insert(moe.ep);
  }
  return {degrees.begin(), degrees.end()};
}

ExpertPlace PlaceAmong(uint32_t ranks, uint32_t rank) {
  return {.rank = rank % ranks, .ranks = ranks, .first = rank - rank % ranks};
}

uint32_t ExpertGroup(const GptShape& shape, uint32_t layer, uint32_t expert) {
  const MoeSizes moe = MoeOf(shape, layer);
  if (moe.ep <= 1) return 0;
  uint32_t first = 1;
  for (const uint32_t degree : ExpertDegrees(shape)) first += degree < moe.ep ? degree : 0;
  return first + expert / (moe.experts / moe.ep);
}

uint32_t ExpertUnit(const GptShape& shape, uint32_t layer, uint32_t expert) {
  uint32_t first = 1;
  for (uint32_t before = 0; before < layer; ++before) first += MoeOf(shape, before).experts;
  return first + expert;
}

}  // namespace tidepool::trainer

// MoeOf: the experts of each block of a model, whose number, sharing ranks and forms may differ by
// block, and where they stand among all (Elixir v1, figure 1).
//
// Any thread; pure functions. Requires a shape that CheckMoe accepts. Groups and units are numbered
// alike on all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

// The experts of block `layer`; experts is 0 if it has none.
MoeSizes MoeOf(const GptShape& shape, uint32_t layer);
// Number of blocks with experts.
uint32_t MoeBlocks(const GptShape& shape);
// Whether any block has experts.
inline bool HasExperts(const GptShape& shape) {
  return MoeBlocks(shape) > 0;
}
// True if all blocks have experts, and nothing beside them, as in transformers' Mixtral.
bool IsMixtral(const GptShape& shape);

// The numbers of ranks, above 1, that share the experts of some block; ascending.
std::vector<uint32_t> ExpertDegrees(const GptShape& shape);
// Rank `rank`'s place among the neighbouring ranks that share the experts of a block.
ExpertPlace PlaceAmong(uint32_t ranks, uint32_t rank);

// The data group of an expert: 0, that of all ranks, if each rank has all experts of the block;
// else one for each rank of those that share them, those of smaller ExpertDegrees first.
uint32_t ExpertGroup(const GptShape& shape, uint32_t layer, uint32_t expert);
// The unit (ParameterNote::unit) of an expert of block `layer`.
uint32_t ExpertUnit(const GptShape& shape, uint32_t layer, uint32_t expert);

}  // namespace tidepool::trainer

// LinearTiles: a block's large linear layers as several parameters each, cut along their outputs,
// so that a chunk may be smaller than the layer, and operators need one tile at a time.
//
// Any thread; pure functions. Tiles of the weight "h.0.mlp.c_fc.weight" [out][in] are
// "h.0.mlp.c_fc.weight.0" [rows][in] and so on; each has as many rows as hold at most
// GptShape::tile_elements, the last one the rest. Norms, biases, embeddings, the output head,
// adapters and experts stay whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/layout/build_layout.h"
#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

// The name of tile `number` of the weight `whole`.
std::string TileName(const std::string& whole, uint64_t number);

// True for the weight of a block's linear layer.
bool IsLinearOfBlock(const ParameterNote& note);
// The rows of a tile of a layer with so many columns (inputs), of at most shape.tile_elements.
uint64_t RowsOfTile(uint64_t columns, const GptShape& shape);

// Replaces each linear layer of more than shape.tile_elements elements by its tiles, in place.
// Nothing if shape.tile_elements is 0.
void CutLinears(const GptShape& shape, std::vector<ParameterNote>* notes);

}  // namespace tidepool::trainer

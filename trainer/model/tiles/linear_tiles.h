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

// Replaces each linear layer of more than shape.tile_elements elements by its tiles, in place.
// Nothing if shape.tile_elements is 0.
void CutLinears(const GptShape& shape, std::vector<ParameterNote>* notes);

// The layers of which CutLinears makes tiles, whatever shape.tile_elements is.
struct LinearSizes {
  uint64_t widest_row = 1;  // elements: the smallest tile that holds a row of each layer
  uint64_t largest = 0;     // elements of the largest layer: tiles as large as this cut nothing
};
LinearSizes SizesOfLinears(const GptShape& shape);

// Where a parameter's values are in a model without tiles.
struct TilePlace {
  std::string whole;   // name of the parameter; the parameter's own name if it is no tile
  uint64_t begin = 0;  // its first element there, row-major
};
// The place of the parameter `name` of GptParameters(shape).
TilePlace PlaceOfTile(const std::string& name, const GptShape& shape);

}  // namespace tidepool::trainer

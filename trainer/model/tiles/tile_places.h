// Tile places: what the tiles of a model's linear layers (linear_tiles.h) are in the same model
// without tiles.
//
// Any thread; pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/model/model_sizes.h"

namespace tidepool::trainer {

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

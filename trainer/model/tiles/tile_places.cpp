#include "trainer/model/tiles/tile_places.h"

#include <algorithm>

#include "trainer/model/gpt_shape.h"
#include "trainer/model/lora.h"
#include "trainer/model/tiles/linear_tiles.h"

namespace tidepool::trainer {

LinearSizes SizesOfLinears(const GptShape& shape) {
  GptShape whole = shape;
  whole.tile_elements = 0;
  LinearSizes sizes;
  for (const ParameterNote& note : GptParameters(whole)) {
    if (!IsLinearOfBlock(note)) continue;
    sizes.widest_row = std::max(sizes.widest_row, note.dims[1]);
    sizes.largest = std::max(sizes.largest, note.dims[0] * note.dims[1]);
  }
  return sizes;
}

TilePlace PlaceOfTile(const std::string& name, const GptShape& shape) {
  const size_t dot = name.rfind('.');
  if (shape.tile_elements == 0 || dot == std::string::npos) return {name, 0};
  const std::string whole = name.substr(0, dot);
  if (!whole.ends_with(".weight")) return {name, 0};

  const uint64_t columns = LayerColumns(whole, shape);
  return {whole, std::stoull(name.substr(dot + 1)) * RowsOfTile(columns, shape) * columns};
}

}  // namespace tidepool::trainer

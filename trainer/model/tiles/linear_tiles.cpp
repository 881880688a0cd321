#include "trainer/model/tiles/linear_tiles.h"

#include <algorithm>
#include <utility>

namespace tidepool::trainer {

bool IsLinearOfBlock(const ParameterNote& note) {
  const bool in_block = note.name.starts_with("h.") || note.name.starts_with("model.layers.");
  return in_block && note.dims.size() == 2 && note.name.ends_with(".weight") &&
         note.name.find(".block_sparse_moe.") == std::string::npos;
}

uint64_t RowsOfTile(uint64_t columns, const GptShape& shape) {
  return std::max<uint64_t>(1, shape.tile_elements / columns);
}

std::string TileName(const std::string& whole, uint64_t number) {
  return whole + "." + std::to_string(number);
}

void CutLinears(const GptShape& shape, std::vector<ParameterNote>* notes) {
  if (shape.tile_elements == 0) return;
  std::vector<ParameterNote> cut;
  for (ParameterNote& note : *notes) {
    if (!IsLinearOfBlock(note) || note.dims[0] * note.dims[1] <= shape.tile_elements) {
      cut.push_back(std::move(note));
      continue;
    }

    const uint64_t rows = RowsOfTile(note.dims[1], shape);
    for (uint64_t begin = 0; begin < note.dims[0]; begin += rows) {
      ParameterNote& tile = cut.emplace_back(note);
      tile.name = TileName(note.name, begin / rows);
      tile.dims[0] = std::min(rows, note.dims[0] - begin);
    }
  }
  *notes = std::move(cut);
}

}  // namespace tidepool::trainer

#include "trainer/model/tiles/linear_tiles.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "trainer/model/lora.h"

namespace tidepool::trainer {
namespace {

constexpr std::string_view kWeight = ".weight", kExperts = ".block_sparse_moe.";

bool IsLinearOfBlock(const ParameterNote& note) {
  const bool in_block = note.name.starts_with("h.") || note.name.starts_with("model.layers.");
  return in_block && note.dims.size() == 2 && note.name.ends_with(kWeight) &&
         note.name.find(kExperts) == std::string::npos;
}

uint64_t RowsOfTile(uint64_t columns, const GptShape& shape) {
  return std::max<uint64_t>(1, shape.tile_elements / columns);
}

}  // namespace

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
  if (!whole.ends_with(kWeight)) return {name, 0};

  const uint64_t columns = LayerColumns(whole, shape);
  return {whole, std::stoull(name.substr(dot + 1)) * RowsOfTile(columns, shape) * columns};
}

}  // namespace tidepool::trainer

// A model whose chunks are of several sizes, for what an exchange of them is said to need and what
// it takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/layout/build_layout.h"
#include "trainer/plan/estimate.h"

namespace tidepool::trainer {

// The largest chunks come first.
inline ChunkLayout LayoutOfSeveralSizes(uint32_t world) {
  std::vector<ParameterNote> notes{{"embedding", {700, 16}, 0, 0, true},
                                   {"head", {700, 16}, 0, 0, true}};
  for (int i = 0; i < 12; ++i) notes.push_back({"p" + std::to_string(i), {64, 64}, 0, 0, false});
  LayoutOptions options;
  options.world = world;
  options.chunk_bytes = 64 * 64 * sizeof(float);
  return BuildLayout(notes, options).value();
}

}  // namespace tidepool::trainer

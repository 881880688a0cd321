// TwentyLayers: the layout and the use trace of a small model, for tests of advice: 20 linear
// layers of one chunk each, used in turn by two ranks, and backward in reverse; or more of them.
//
// The test's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/layout/build_layout.h"
#include "trainer/plan/use_trace.h"

namespace tidepool::trainer {

constexpr uint32_t kTwenty = 20;
constexpr uint64_t kTwentyChunk = 64 * 1024;  // elements of each chunk, in bf16

inline ChunkLayout TwentyLayers(uint32_t layers = kTwenty) {
  std::vector<ParameterNote> notes;
  for (uint32_t i = 0; i < layers; ++i)
    notes.push_back({"p" + std::to_string(i), {256, 256}, 0, 0, false});

  LayoutOptions options;
  options.dtype = DType::kBF16;
  options.world = 2;
  options.chunk_bytes = kTwentyChunk * 2;
  return BuildLayout(notes, options).value();
}

inline UseTrace TwentyLayersInTurn(uint32_t layers = kTwenty) {
  UseTrace trace;
  for (uint32_t i = 0; i < 2 * layers; ++i) {
    const uint32_t note = i < layers ? i : 2 * layers - 1 - i;
    trace.events.push_back({UseEvent::Kind::kBegin, {note}});
    trace.events.push_back({UseEvent::Kind::kEnd, {}});
    if (i >= layers) trace.events.push_back({UseEvent::Kind::kGradient, {note}});
  }
  return trace;
}

}  // namespace tidepool::trainer

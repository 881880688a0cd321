// PlanPicture: a plan of the rCache as a picture: which chunks have a block at which moment of a
// step, which are on their way, and which blocks hold gradients.
//
// Any thread; torch-free, pure. One row per chunk, one column per moment of the order of use
// (trainer/plan/access_schedule.h). The colours are those of all pictures (base/picture/palette.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/access_schedule.h"

namespace tidepool::trainer {

// What a chunk's block holds over an interval of moments [from, to).
struct BlockSpan {
  enum class Kind : uint8_t {
    kComing,     // the fetch may run: a block is free for it, and nobody waits yet
    kHeld,       // parameters
    kGradients,  // gradients of the chunk
  };
  ChunkId chunk = 0;
  Kind kind = Kind::kHeld;
  uint64_t from = 0, to = 0;
  friend bool operator==(const BlockSpan&, const BlockSpan&) = default;
};

// The spans of all evictable chunks over a step, in an rCache of so many blocks, in which the order
// must be able to run.
std::vector<BlockSpan> BlockSpans(const AccessSchedule& order, const ChunkLayout& layout,
                                  uint64_t blocks);

// A complete SVG document.
std::string PlanSvg(const AccessSchedule& order, const ChunkLayout& layout, uint64_t blocks,
                    const std::string& title);

}  // namespace tidepool::trainer

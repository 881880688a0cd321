// StagePlan: what of a model's chunks each stage of a pipeline uses, and where the gradients of a
// stage are added up.
//
// Any thread; torch-free; a value and a pure function. A stage is a run of layers. Chunks do not
// know of stages: one may belong to two that follow each other, and a parameter that is used at
// both ends of the model (a tied embedding) to the first and the last.
// The rCache of a pipelined run, from its begin:
//   resident chunks | blocks | sums of resident chunks | rooms for the sums of the others
// Sums are fp32, but with one micro-batch, whose gradient is its own sum, of the chunk's dtype.
// Units: bytes, unless a name says elements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

// The first and the last stage, or layer, that uses something; none between them need.
struct StageSpan {
  uint32_t first = 0, last = 0;
  friend bool operator==(const StageSpan&, const StageSpan&) = default;
};

struct StagePlan {
  std::vector<uint32_t> ends;  // of each stage: the layer behind its last
  uint32_t micro_batches = 1;
  std::vector<StageSpan> of_parameter;  // by ParameterId
  std::vector<StageSpan> of_chunk;      // by ChunkId
  // The most evictable chunks that one stage uses, and that one and the next use together.
  uint64_t blocks_of_one = 0, blocks_of_two = 0;

  std::vector<uint64_t> sum_at;  // by ChunkId: of a resident chunk, in the sums' memory
  uint64_t rooms_at = 0;         // there: the first room
  uint64_t room_bytes = 0;       // of one room
  uint32_t rooms = 0;            // sums that are open at a time
  uint64_t tail_bytes = 0;       // of all sums; a multiple of 4 KiB
  uint64_t sum_bytes = 0;        // what a step hands in, each chunk once

  uint32_t stages() const { return static_cast<uint32_t>(ends.size()); }
  // The element type of a chunk's sum.
  DType SumType(const ChunkLayout& layout, ChunkId chunk) const {
    return micro_batches > 1 ? DType::kF32 : layout.chunks[chunk].dtype;
  }
};

// `layers[i]`: the layers that use parameter i of the layout. Requires one rank, nothing frozen,
// and ends that ascend to the number of layers.
StagePlan MakeStagePlan(const ChunkLayout& layout, std::span<const StageSpan> layers,
                        std::vector<uint32_t> ends, uint32_t micro_batches);

}  // namespace tidepool::trainer

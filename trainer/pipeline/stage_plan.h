// StagePlan: which chunks each pipeline stage uses, which rank computes the stage, and where a rank
// accumulates the gradients of its stages.
//
// Any thread; torch-free; values and pure functions. A stage is a run of layers. With one rank,
// chunks ignore stage borders: a chunk may belong to two adjacent stages. With several ranks, each
// stage has its own data group, whose members are its rank in each column. A parameter used at both
// ends of the model (a tied embedding) belongs to the first stage and the last; its chunk is the
// first stage's.
// Layout of a pipelined run's rCache, from its start:
//   resident chunks | blocks | sums of resident chunks | rooms for the sums of the others
// Sums are fp32; with one micro-batch, whose gradient is the sum, they have the chunk's dtype.
// Units: bytes, unless a name says elements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

// The first and the last stage (or layer) that uses a parameter or chunk; stages between them may
// not.
struct StageSpan {
  uint32_t first = 0, last = 0;
  friend bool operator==(const StageSpan&, const StageSpan&) = default;
};

// Where a model is cut.
struct StageCuts {
  std::vector<uint32_t> ends;  // by stage: one past its last layer
  // By stage: the rank that computes it in the first column; empty: rank 0 computes all.
  std::vector<Rank> ranks;
  // Number of parallel pipelines, and of the consecutive ranks of each; width 0: one of all ranks.
  uint32_t columns = 1, width = 0;
  // Whether the first and the last stage both read the token embedding.
  bool is_tied = true;

  uint32_t stages() const { return static_cast<uint32_t>(ends.size()); }
  // The column that a rank belongs to.
  uint32_t ColumnOf(Rank rank) const { return width == 0 ? 0 : rank / width; }
  // The rank that computes a stage in a column.
  Rank RankOf(uint32_t stage, uint32_t column = 0) const {
    return (ranks.empty() ? 0 : ranks[stage]) + column * width;
  }
  // The ranks that compute a stage in all columns, ascending: the members of its data group.
  std::vector<Rank> RanksOf(uint32_t stage) const;
  // The stage of a layer.
  uint32_t StageOf(uint32_t layer) const;
};

// The plan as one rank sees it.
struct StagePlan {
  StageCuts cuts;
  Rank rank = 0;
  uint32_t micro_batches = 1;
  std::vector<StageSpan> of_parameter;  // by ParameterId
  std::vector<StageSpan> of_chunk;      // by ChunkId
  // The fields below cover the rank's own stages and chunks only.
  // The most evictable chunks used by one stage, and by two consecutive stages together.
  uint64_t blocks_of_one = 0, blocks_of_two = 0;

  std::vector<uint64_t> sum_at;              // by ChunkId: a resident chunk's offset in the tail
  uint64_t rooms_at = 0;                     // offset of the first room in the tail
  uint64_t room_bytes = 0;                   // size of one room
  uint32_t rooms = 0;                        // sums that are open at the same time
  uint64_t tail_bytes = 0;                   // size of the tail, all sums; a multiple of 4 KiB
  uint64_t sum_bytes = 0;                    // gradients submitted per step, each shard once
  std::vector<uint64_t> sum_bytes_of_group;  // the same by data group

  uint32_t stages() const { return cuts.stages(); }
  // Whether this rank computes a stage.
  bool Owns(uint32_t stage) const { return cuts.RankOf(stage, cuts.ColumnOf(rank)) == rank; }
  // Whether this rank computes one end of the model and shares a tied token embedding with the rank
  // of the other end.
  bool SharesHead() const { return cuts.is_tied && Owns(0) != Owns(stages() - 1); }
  // The element type of a chunk's sum.
  DType SumType(const ChunkLayout& layout, ChunkId chunk) const {
    return micro_batches > 1 ? DType::kF32 : layout.chunks[chunk].dtype;
  }
};

// Sizes of the tensors that stages exchange.
struct StageSizes {
  uint64_t boundary = 0;   // one boundary tensor, or its gradient
  uint64_t embedding = 0;  // the token embedding, or one part of its gradient
};
// Bytes that the plan's rank sends in a step: each output that the next stage's rank needs, each
// gradient of an input, the embedding once, and a part of its gradient per micro-batch.
uint64_t SentBytesOf(const StagePlan& plan, const StageSizes& sizes);

// `layers[i]`: the layers that use parameter i of the layout. Requires: nothing is frozen, ends
// ascend up to the number of layers, and each rank of a column has a stage.
StagePlan MakeStagePlan(const ChunkLayout& layout, std::span<const StageSpan> layers,
                        StageCuts cuts, uint32_t micro_batches, Rank rank);

}  // namespace tidepool::trainer

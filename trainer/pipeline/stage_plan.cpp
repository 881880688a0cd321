#include "trainer/pipeline/stage_plan.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

// By stage: whether it uses the chunk.
using UsedBy = std::vector<std::vector<bool>>;

std::vector<uint32_t> OwnStages(const StagePlan& plan) {
  std::vector<uint32_t> own;
  for (uint32_t stage = 0; stage < plan.stages(); ++stage) {
    if (plan.Owns(stage)) own.push_back(stage);
  }
  return own;
}

void CountBlocks(const ChunkLayout& layout, const UsedBy& used, StagePlan* plan) {
  const std::vector<uint32_t> own = OwnStages(*plan);
  for (size_t i = 0; i < own.size(); ++i) {
    uint64_t one = 0, two = 0;

    for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
      if (layout.chunks[chunk].resident) continue;
      const bool here = used[own[i]][chunk];
      one += here;
      two += here || (i + 1 < own.size() && used[own[i + 1]][chunk]);
    }
    plan->blocks_of_one = std::max(plan->blocks_of_one, one);
    plan->blocks_of_two = std::max(plan->blocks_of_two, two);
  }
}

// A sum is open from the backward of the chunk's last stage to that of its first.
void PlaceSums(const ChunkLayout& layout, StagePlan* plan) {
  plan->sum_at.assign(layout.chunks.size(), 0);
  plan->sum_bytes_of_group.assign(layout.data_groups.size(), 0);
  std::vector<uint32_t> open(plan->stages(), 0);
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    if (!layout.IsMember(chunk, plan->rank)) continue;
    const uint64_t element = BytesOf(plan->SumType(layout, chunk)),
                   bytes = layout.chunks[chunk].elements * element,
                   shard = layout.ShardElements(chunk) * element;
    plan->sum_bytes += shard;
    plan->sum_bytes_of_group[layout.chunks[chunk].data_group] += shard;

    if (layout.chunks[chunk].resident) {
      plan->sum_at[chunk] = plan->rooms_at;
      plan->rooms_at += RoundUp(bytes, kPageBytes);
      continue;
    }

    plan->room_bytes = std::max(plan->room_bytes, RoundUp(bytes, kPageBytes));
    const StageSpan& span = plan->of_chunk[chunk];
    for (uint32_t stage = span.first; stage <= span.last; ++stage) ++open[stage];
  }

  plan->rooms = *std::max_element(open.begin(), open.end());
  plan->tail_bytes = plan->rooms_at + plan->rooms * plan->room_bytes;
}

}  // namespace

uint32_t StageCuts::StageOf(uint32_t layer) const {
  const auto found = std::upper_bound(ends.begin(), ends.end(), layer);
  TP_CHECK(found != ends.end(), "every layer belongs to a stage");
  return static_cast<uint32_t>(found - ends.begin());
}

std::vector<Rank> StageCuts::RanksOf(uint32_t stage) const {
  std::vector<Rank> members;
  for (uint32_t column = 0; column < columns; ++column) members.push_back(RankOf(stage, column));
  return members;
}

StagePlan MakeStagePlan(const ChunkLayout& layout, std::span<const StageSpan> layers,
                        StageCuts cuts, uint32_t micro_batches, Rank rank) {
  TP_CHECK(layout.TrainedChunks() == layout.chunks.size(), "all chunks are trained");
  StagePlan plan;
  plan.cuts = std::move(cuts);
  plan.rank = rank;
  plan.micro_batches = micro_batches;
  plan.of_chunk.assign(layout.chunks.size(), {plan.stages() - 1, 0});
  UsedBy used(plan.stages(), std::vector<bool>(layout.chunks.size(), false));

  for (ParameterId id = 0; id < layout.parameters.size(); ++id) {
    const StageSpan span{plan.cuts.StageOf(layers[id].first), plan.cuts.StageOf(layers[id].last)};
    plan.of_parameter.push_back(span);
    const ChunkId chunk = layout.parameters[id].chunk;
    used[span.first][chunk] = used[span.last][chunk] = true;
    plan.of_chunk[chunk].first = std::min(plan.of_chunk[chunk].first, span.first);
    plan.of_chunk[chunk].last = std::max(plan.of_chunk[chunk].last, span.last);
  }

  CountBlocks(layout, used, &plan);
  PlaceSums(layout, &plan);
  return plan;
}

uint64_t SentBytesOf(const StagePlan& plan, const StageSizes& sizes) {
  uint64_t tensors = 0;  // per micro-batch
  for (uint32_t stage = 0; stage + 1 < plan.stages(); ++stage)
    tensors += plan.Owns(stage) != plan.Owns(stage + 1);

  uint64_t bytes = tensors * sizes.boundary * plan.micro_batches;
  if (!plan.SharesHead()) return bytes;
  return bytes + sizes.embedding * (plan.Owns(0) ? 1 : plan.micro_batches);
}

}  // namespace tidepool::trainer

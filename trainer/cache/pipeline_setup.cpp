#include "trainer/cache/pipeline_setup.h"

namespace tidepool::trainer {

client::Range PipelineSetup::ShardRange(ChunkId chunk, const std::byte* block) const {
  const uint64_t elements = layout->ShardElements(chunk), index = layout->ShardIndex(chunk, rank);
  client::Range range;
  range.chunk = chunk;
  range.element_begin = index * elements;
  range.element_count = elements;
  range.rcache_offset = static_cast<uint64_t>(block - service->attachment().rcache) +
                        index * layout->ShardBytes(chunk);
  return range;
}

client::Range PipelineSetup::SubmitRange(ChunkId chunk, const std::byte* block) const {
  client::Range range = ShardRange(chunk, block);
  range.rcache_offset = static_cast<uint64_t>(block - service->attachment().rcache) +
                        range.element_begin * BytesOf(SubmitType(chunk));
  return range;
}

client::Range PipelineSetup::FetchRange(ChunkId chunk, const std::byte* block) const {
  if (exchange == Exchange::kSharded) return ShardRange(chunk, block);
  client::Range range;
  range.chunk = chunk;
  range.element_count = layout->chunks[chunk].elements;
  range.rcache_offset = static_cast<uint64_t>(block - service->attachment().rcache);
  return range;
}

Status PipelineSetup::CompareOrders() const {
  for (Collective* group : groups) {
    if (group != nullptr && group->world() > 1) TP_RETURN_IF_ERROR(group->CompareOrder());
  }
  return {};
}

OperationName PassNames::Next(ChunkId chunk) {
  const ChunkPlace& at = layout_->chunks[chunk];
  return {chunk, ++places_[at.data_group], layout_->parameters[at.first_parameter].name};
}

}  // namespace tidepool::trainer

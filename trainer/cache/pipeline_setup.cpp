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

}  // namespace tidepool::trainer

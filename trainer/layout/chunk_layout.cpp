#include "trainer/layout/chunk_layout.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

const std::vector<Rank>& MembersOf(const ChunkLayout& layout, ChunkId chunk) {
  return layout.data_groups[layout.chunks[chunk].data_group];
}

std::vector<ChunkId> ChunksOf(const ChunkLayout& layout, Rank rank) {
  std::vector<ChunkId> chunks;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    if (layout.IsMember(chunk, rank)) chunks.push_back(chunk);
  }
  return chunks;
}

}  // namespace

uint32_t ChunkLayout::TrainedChunks() const {
  const auto first = std::find_if(chunks.begin(), chunks.end(),
                                  [](const ChunkPlace& chunk) { return chunk.frozen; });
  return static_cast<uint32_t>(first - chunks.begin());
}

uint32_t ChunkLayout::OwnF32Chunks() const {
  if (dtype == DType::kF32) return 0;
  const auto end = chunks.begin() + TrainedChunks();
  return static_cast<uint32_t>(std::count_if(
      chunks.begin(), end, [](const ChunkPlace& chunk) { return chunk.dtype == DType::kF32; }));
}

uint32_t ChunkLayout::ShardCount(ChunkId chunk) const {
  return static_cast<uint32_t>(MembersOf(*this, chunk).size());
}

uint32_t ChunkLayout::ShardIndex(ChunkId chunk, Rank rank) const {
  const std::vector<Rank>& members = MembersOf(*this, chunk);
  const auto found = std::lower_bound(members.begin(), members.end(), rank);
  TP_CHECK(found != members.end() && *found == rank, "a shard index is asked for members only");
  return static_cast<uint32_t>(found - members.begin());
}

bool ChunkLayout::IsMember(ChunkId chunk, Rank rank) const {
  const std::vector<Rank>& members = MembersOf(*this, chunk);
  return std::binary_search(members.begin(), members.end(), rank);
}

uint64_t ChunkLayout::ShardElements(ChunkId chunk) const {
  return chunks[chunk].elements / ShardCount(chunk);
}
uint64_t ChunkLayout::ShardBytes(ChunkId chunk) const {
  return ShardElements(chunk) * BytesOf(chunks[chunk].dtype);
}
uint64_t ChunkLayout::ChunkBytes(ChunkId chunk) const {
  return chunks[chunk].elements * BytesOf(chunks[chunk].dtype);
}
uint64_t ChunkLayout::ByteBegin(ParameterId parameter) const {
  const ParameterPlace& place = parameters[parameter];
  return place.element_begin * BytesOf(chunks[place.chunk].dtype);
}

uint64_t ChunkLayout::BlockBytes() const {
  return RoundUp(block_bytes, kPageBytes);
}

uint64_t ChunkLayout::ResidentBytes(Rank rank) const {
  uint64_t bytes = 0;
  for (ChunkId chunk = 0; chunk < chunks.size(); ++chunk) {
    if (chunks[chunk].resident && IsMember(chunk, rank))
      bytes += RoundUp(ChunkBytes(chunk), kPageBytes);
  }
  return bytes;
}

uint64_t ChunkLayout::RcacheBytes(Rank rank, uint64_t blocks) const {
  return ResidentBytes(rank) + blocks * BlockBytes();
}

uint64_t ChunkLayout::EvictableChunks(Rank rank) const {
  uint64_t count = 0;
  for (ChunkId chunk = 0; chunk < chunks.size(); ++chunk)
    count += !chunks[chunk].resident && IsMember(chunk, rank);
  return count;
}

uint64_t ChunkLayout::BlocksIn(Rank rank, uint64_t rcache_bytes) const {
  return BlockBytes() == 0
             ? 0
             : std::min((rcache_bytes - ResidentBytes(rank)) / BlockBytes(), EvictableChunks(rank));
}

bool ChunkLayout::AreAlike(Rank a, Rank b) const {
  const auto alike = [&](ChunkId of_a, ChunkId of_b) {
    const bool apart = !IsMember(of_a, b) && !IsMember(of_b, a);
    const ChunkPlace &one = chunks[of_a], &other = chunks[of_b];
    return of_a == of_b ||
           (apart && one.resident == other.resident && one.multi_use == other.multi_use);
  };
  const std::vector<ChunkId> chunks_of_a = ChunksOf(*this, a), chunks_of_b = ChunksOf(*this, b);
  return std::equal(chunks_of_a.begin(), chunks_of_a.end(), chunks_of_b.begin(), chunks_of_b.end(),
                    alike);
}

uint32_t ChunkLayout::Units() const {
  uint32_t units = 0;
  for (const ChunkPlace& chunk : chunks) units = std::max(units, chunk.unit);
  return units;
}

ParameterId ChunkLayout::ParameterAt(ChunkId chunk, uint64_t element) const {
  const ChunkPlace& place = chunks[chunk];
  const auto begin = parameters.begin() + place.first_parameter;
  // An alignment gap belongs to the parameter before it.
  const auto after = std::upper_bound(
      begin, begin + place.parameter_count, element,
      [](uint64_t at, const ParameterPlace& parameter) { return at < parameter.element_begin; });
  TP_CHECK(after != begin, "every chunk starts with a parameter");
  return static_cast<ParameterId>(after - parameters.begin() - 1);
}

uint64_t ChunkLayout::ParameterCount() const {
  uint64_t count = 0;
  for (const ParameterPlace& parameter : parameters) count += parameter.element_count;
  return count;
}

uint64_t ChunkLayout::TrainedParameterCount() const {
  uint64_t count = 0;
  for (ParameterId id = 0; id < parameters.size(); ++id)
    count += IsFrozen(id) ? 0 : parameters[id].element_count;
  return count;
}

uint64_t ChunkLayout::ParameterBytes() const {
  uint64_t bytes = 0;
  for (const ChunkPlace& chunk : chunks) bytes += chunk.used_elements * BytesOf(chunk.dtype);
  return bytes;
}

uint64_t ChunkLayout::TotalBytes() const {
  uint64_t bytes = 0;
  for (ChunkId chunk = 0; chunk < chunks.size(); ++chunk) bytes += ChunkBytes(chunk);
  return bytes;
}

}  // namespace tidepool::trainer

// WeightPut: every element arrives where the layout says, padding as zeros, whatever the size of
// the rCache and the order of chunks.
#include "trainer/cache/weight_put.h"

#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "tests/fakes/memory_chunk_service.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace weight_put_test {

using testing::MemoryChunkService;
using testing::MemoryServer;

ChunkLayout Model(uint32_t world) {
  std::vector<ParameterNote> notes;
  for (uint64_t i = 0; i < 13; ++i)
    notes.push_back({"p" + std::to_string(i), {1 + 37 * i % 150}, 0, 0, i == 4});
  LayoutOptions options;
  options.world = world;
  options.chunk_bytes = 240 * 4;
  return BuildLayout(notes, options).value();
}

std::vector<float> ValuesOf(ParameterId id, uint64_t count) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<float>(1000 * (id + 1) + i);
  return values;
}

void ExpectAllThere(const ChunkLayout& layout, const MemoryServer& server) {
  std::vector<std::vector<float>> expected;
  for (const ChunkPlace& chunk : layout.chunks) expected.emplace_back(chunk.elements, 0.0f);
  for (ParameterId id = 0; id < layout.parameters.size(); ++id) {
    const ParameterPlace& place = layout.parameters[id];
    const std::vector<float> values = ValuesOf(id, place.element_count);
    std::copy(values.begin(), values.end(),
              expected[place.chunk].begin() + static_cast<std::ptrdiff_t>(place.element_begin));
  }
  EXPECT_EQ(server.values, expected);
}

TEST(WeightPut, AllRanksTogetherPutTheWholeModel) {
  for (const uint32_t world : {1u, 2u, 3u}) {
    for (const uint64_t rcache_bytes : {128u, 4096u, 1u << 20}) {
      const ChunkLayout layout = Model(world);
      MemoryServer server(&layout);
      for (auto& chunk : server.values) std::fill(chunk.begin(), chunk.end(), -1.0f);
      for (Rank rank = 0; rank < world; ++rank) {
        MemoryChunkService service(&server, rank, rcache_bytes, rank, 5);
        WeightPut put(&layout, rank, &service);
        for (ParameterId id = 0; id < layout.parameters.size(); ++id) {
          ASSERT_TRUE(put.Put(id, ValuesOf(id, layout.parameters[id].element_count).data()).ok());
        }
        ASSERT_TRUE(put.Finish().ok());
        EXPECT_EQ(put.bytes_put(), layout.TotalBytes() / BytesOf(layout.dtype) / world * 4);
      }
      ExpectAllThere(layout, server);
    }
  }
}

TEST(WeightPut, ChunksMayComeInAnyOrder) {
  const ChunkLayout layout = Model(2);
  MemoryServer server(&layout);
  std::vector<ParameterId> order;
  // The chunks' parameters interleaved: first of each, then second of each.
  for (uint32_t i = 0; order.size() < layout.parameters.size(); ++i) {
    for (ChunkId chunk = static_cast<ChunkId>(layout.chunks.size()); chunk-- > 0;) {
      if (i < layout.chunks[chunk].parameter_count)
        order.push_back(layout.chunks[chunk].first_parameter + i);
    }
  }
  for (Rank rank = 0; rank < 2; ++rank) {
    MemoryChunkService service(&server, rank, 4096, rank, 5);
    WeightPut put(&layout, rank, &service);
    for (const ParameterId id : order)
      ASSERT_TRUE(put.Put(id, ValuesOf(id, layout.parameters[id].element_count).data()).ok());
    ASSERT_TRUE(put.Finish().ok());
  }
  ExpectAllThere(layout, server);
}

TEST(WeightPut, OutOfOrderTwiceAndMissingAreNamed) {
  const ChunkLayout layout = Model(1);
  MemoryServer server(&layout);
  MemoryChunkService service(&server, 0, 4096, 1, 0);
  WeightPut put(&layout, 0, &service);
  ChunkId chunk = 0;
  while (layout.chunks[chunk].parameter_count < 2) ++chunk;
  const ParameterId first = layout.chunks[chunk].first_parameter;
  const std::vector<float> values(200, 1.0f);
  EXPECT_EQ(put.Put(first + 1, values.data()).id(), ErrorId::kUsageError);
  EXPECT_TRUE(put.Put(first, values.data()).ok());
  EXPECT_EQ(put.Put(first, values.data()).id(), ErrorId::kUsageError);
  const Status missing = put.Finish();
  EXPECT_EQ(missing.id(), ErrorId::kUsageError);
  EXPECT_NE(missing.what().find(layout.parameters[0].name), std::string::npos);
}

}  // namespace weight_put_test
}  // namespace tidepool::trainer

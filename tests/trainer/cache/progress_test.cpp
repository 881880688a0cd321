// How often the rCache looks after transfers in flight: once an operator; and that it can wait for
// all of them.
#include <gtest/gtest.h>

#include <memory>

#include "tests/fakes/memory_chunk_service.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace progress_test {

using testing::MemoryChunkService;
using testing::MemoryServer;

class CountingService final : public MemoryChunkService {
 public:
  using MemoryChunkService::MemoryChunkService;
  bool Test(client::Ticket ticket) override {
    ++tests;
    return MemoryChunkService::Test(ticket);
  }
  uint64_t tests = 0;
};

TEST(Progress, TransfersAreLookedAfterOnceAnOperator) {
  LayoutOptions options;
  options.chunk_bytes = 64 * 4;
  const std::vector<ParameterNote> notes{{"first", {64}, 0, 0, false},
                                         {"later", {64}, 0, 0, false}};
  const ChunkLayout layout = BuildLayout(notes, options).value();
  MemoryServer server(&layout);
  CountingService service(&server, 0, 2 * layout.BlockBytes(), /*seed=*/1, /*delay_max=*/1'000'000);
  SteadyClock clock;
  CacheSetup setup;
  setup.layout = &layout;
  setup.service = &service;
  setup.groups = {nullptr};
  setup.clock = &clock;
  const auto cache = std::move(ParameterCache::Create(std::move(setup))).value();
  const auto use = [&cache](ChunkId chunk) {
    ASSERT_TRUE(cache->Acquire({&chunk, 1}).ok());
    ASSERT_TRUE(cache->Release({&chunk, 1}).ok());
  };
  for (Version version = 0; version < 2; ++version) {
    server.version = version;
    ASSERT_TRUE(cache->BeginPass(PassKind::kEvaluation, version).ok());
    use(0);
    if (version == 0) use(1);
  }

  // The second chunk is on its way.
  ASSERT_EQ(service.in_flight(), 1u);
  service.tests = 0;
  for (int i = 0; i < 10; ++i) use(0);
  EXPECT_EQ(service.tests, 10u);
  EXPECT_EQ(service.in_flight(), 1u);
  ASSERT_TRUE(cache->AwaitTransfers().ok());
  EXPECT_EQ(service.in_flight(), 0u)
      << "what was fetched ahead has come, though no operator needs it";
}

}  // namespace progress_test
}  // namespace tidepool::trainer

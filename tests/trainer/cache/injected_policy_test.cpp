// ParameterCache asks the policies that its setup brings: one while it records, the other in a pass
// that has left the order.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "tests/fakes/memory_chunk_service.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace injected_policy_test {

// Always the last of the candidates; writes down what it was told and asked.
class LastEviction final : public EvictionPolicy {
 public:
  explicit LastEviction(std::string* notes) : notes_(notes) {}
  const char* name() const override { return "last"; }
  void Used(ChunkId chunk, uint64_t position) override { Note("used", chunk, position); }
  ChunkId Victim(std::span<const ChunkId> candidates, uint64_t position) override {
    Note("gone", candidates.back(), position);
    return candidates.back();
  }

 private:
  void Note(const char* what, ChunkId chunk, uint64_t position) {
    *notes_ +=
        std::string(what) + " " + std::to_string(chunk) + "@" + std::to_string(position) + " ";
  }
  std::string* notes_;
};

TEST(InjectedPolicy, NamesTheVictims) {
  std::vector<ParameterNote> notes;
  for (int i = 0; i < 6; ++i) notes.push_back({"p" + std::to_string(i), {64}, 0, 0, false});
  LayoutOptions options;
  options.chunk_bytes = 64 * 4;
  const ChunkLayout layout = BuildLayout(notes, options).value();
  testing::MemoryServer server(&layout);
  testing::MemoryChunkService service(&server, 0, layout.RcacheBytes(0, 2), 1, 2);
  SteadyClock clock;
  std::string recording, left_order;
  CacheSetup setup;
  setup.layout = &layout;
  setup.service = &service;
  setup.groups = {nullptr};
  setup.clock = &clock;
  setup.options.prefetch_depth = 0;
  setup.policies = {std::make_unique<LastEviction>(&recording),
                    std::make_unique<LastEviction>(&left_order)};
  auto cache = std::move(ParameterCache::Create(std::move(setup))).value();
  const auto evaluate = [&cache](const std::vector<ChunkId>& order, Version version) {
    ASSERT_TRUE(cache->BeginPass(PassKind::kEvaluation, version).ok());
    for (const ChunkId chunk : order)
      ASSERT_TRUE(cache->Acquire({&chunk, 1}).ok() && cache->Release({&chunk, 1}).ok());
  };
  evaluate({0, 1, 2, 3}, 0);
  EXPECT_EQ(recording, "used 0@0 used 1@1 used 2@2 gone 1@2 used 3@3 gone 2@3 ");
  EXPECT_EQ(left_order, "used 0@0 used 1@1 used 2@2 used 3@3 ")
      << "it hears of every use, and is not asked";
  recording.clear();
  left_order.clear();
  server.version = 1;
  evaluate({0, 1, 5}, 1);  // leaves the order at its third use
  EXPECT_EQ(recording, "used 0@0 used 1@1 used 5@2 ");
  EXPECT_EQ(left_order, "used 0@0 used 1@1 used 5@2 gone 1@2 ");
}

}  // namespace injected_policy_test
}  // namespace tidepool::trainer

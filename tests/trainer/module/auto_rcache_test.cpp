// What an rCache of "auto" comes to for a module, by who knows what.
#include "trainer/module/auto_rcache.h"

#include "trainer/module/module_way.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "trainer/advice/device_memory.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace auto_rcache_test {

// 40 layers of a chunk of 8 MiB each, used in turn; backward in reverse.
class AutoRcacheTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kChunkBytes = 8 * kMiB;

  void SetUp() override {
    std::vector<ParameterNote> notes;
    for (uint32_t i = 0; i < 40; ++i) notes.push_back({"p" + std::to_string(i), {1024, 2048}});
    LayoutOptions options;
    options.chunk_bytes = kChunkBytes;
    layout_ = BuildLayout(notes, options).value();

    auto& events = profile_.trace.events;
    const auto use = [&events](uint32_t note) {
      events.push_back({UseEvent::Kind::kBegin, {note}});
      events.push_back({UseEvent::Kind::kEnd, {}});
    };
    for (uint32_t i = 0; i < 40; ++i) use(i);
    for (uint32_t i = 40; i-- > 0;) {
      use(i);
      events.push_back({UseEvent::Kind::kGradient, {i}});
    }
    profile_.arithmetic = 1e15;  // much more than any copy costs
    run_.memory.rcache = "auto";
    run_.device.name = "cpu";
  }

  uint64_t Blocks(const AutoRcache& what) const {
    const Result<RcachePlan> plan = PlanModuleRcache(layout_, run_, place_, what);
    EXPECT_TRUE(plan.ok()) << plan.status().Format();
    return plan.ok() ? plan.value().blocks : 0;
  }

  ChunkLayout layout_;
  StepProfile profile_;
  RunOptions run_;
  RankPlace place_;
  const OptimizerSpec optimizer_;
};

TEST_F(AutoRcacheTest, WithoutAProfileIsAQuarter) {
  EXPECT_EQ(Blocks({nullptr, {}, 0, optimizer_}), 10U);
}

TEST_F(AutoRcacheTest, OfAProfileWithoutArithmeticOrOfSeveralRanksIsAQuarter) {
  profile_.arithmetic = 0;
  EXPECT_EQ(Blocks({&profile_, {}, 0, optimizer_}), 10U);
  profile_.arithmetic = 1e15;
  place_.world = 2;
  EXPECT_EQ(Blocks({&profile_, {}, 0, optimizer_}), 10U);
}

TEST_F(AutoRcacheTest, OnTheHostIsWhatTheArithmeticAllowsButNoLessThan64MiB) {
  EXPECT_EQ(Blocks({&profile_, {}, 0, optimizer_}), 8U);
  // As much as 20 chunks of copies; and two blocks to fetch ahead into.
  profile_.arithmetic = 20.0 * kChunkBytes * 32 / 0.01;
  EXPECT_EQ(Blocks({&profile_, {}, 0, optimizer_}), 22U);
  profile_.arithmetic = 1;
  EXPECT_EQ(Blocks({&profile_, {}, 0, optimizer_}), 40U);
}

TEST_F(AutoRcacheTest, OnAGpuIsWhatFitsBesideActivations) {
  run_.device.name = "cuda";
  profile_.activation_bytes = 100 * kMiB;
  profile_.buffer_bytes = kMiB;
  DeviceMemory memory{.capacity = 400 * kMiB, .taken = 20 * kMiB, .origin = "a test"};
  const uint64_t room = (400 - 20 - 1 - 125) * kMiB - SpareBytes(layout_);
  EXPECT_EQ(Blocks({&profile_, memory, 0, optimizer_}), room / 20 * 19 / kChunkBytes);

  memory.capacity = 100 * kMiB;  // nothing fits: as if nothing were known
  EXPECT_EQ(Blocks({&profile_, memory, 0, optimizer_}), 10U);
  EXPECT_EQ(Blocks({&profile_, {}, 0, optimizer_}), 10U) << "no GPU could be asked";
}

TEST_F(AutoRcacheTest, AJobThatIsHeldKeepsItsOwnAndAWordOfTheUsersIsFollowed) {
  EXPECT_EQ(Blocks({&profile_, {}, layout_.RcacheBytes(0, 17), optimizer_}), 17U);
  run_.memory.rcache = "50%";
  EXPECT_EQ(Blocks({&profile_, {}, layout_.RcacheBytes(0, 17), optimizer_}), 20U);
}

TEST_F(AutoRcacheTest, NoMemoryIsAskedOfAHostOrForSeveralRanks) {
  EXPECT_FALSE(MemoryToPlan(run_, place_));
  run_.device.name = "cuda";
  place_.world = 2;
  EXPECT_FALSE(MemoryToPlan(run_, place_));
}

class ModuleWayTest : public AutoRcacheTest {
 protected:
  Result<ModuleWay> Way(const char* plan, const char* rcache, bool profiled = true) {
    run_.memory.plan = plan;
    run_.memory.rcache = rcache;
    return PlanModuleWay(layout_, run_, place_,
                         {profiled ? &profile_ : nullptr, {}, 0, optimizer_});
  }
  uint64_t Blocks(const char* plan, const char* rcache, bool profiled = true) {
    const Result<ModuleWay> way = Way(plan, rcache, profiled);
    EXPECT_TRUE(way.ok()) << way.status().Format();
    return way.ok() ? way.value().rcache.blocks : 0;
  }
};

TEST_F(ModuleWayTest, APresetTakesWhatItNeeds) {
  for (const bool profiled : {true, false}) {
    EXPECT_EQ(Blocks("zero2", "auto", profiled), 40U);
    EXPECT_EQ(Blocks("ddp", "auto", profiled), 40U);
  }
  EXPECT_EQ(Way("ddp", "auto").value().exchange, Exchange::kReplicated);
  EXPECT_EQ(Way("zero2", "auto").value().exchange, Exchange::kSharded);
  place_.world = 2;
  EXPECT_EQ(Blocks("zero3", "auto"), 1 + kBlocksAhead);
}

TEST_F(ModuleWayTest, WithoutAPlanTheRcacheSaysItAll) {
  EXPECT_EQ(Blocks("", "50%"), 20U);
  EXPECT_EQ(Blocks("auto", "auto"), 8U) << "as rcache auto";
}

TEST_F(ModuleWayTest, AnRcacheIsALimitThen) {
  EXPECT_EQ(Blocks("auto", "50%"), 20U);
  EXPECT_EQ(Blocks("auto", "50%", false), 20U);
  EXPECT_EQ(Blocks("zero2", "100%"), 40U);
  EXPECT_EQ(Blocks("zero3", "5%"), 2U) << "one fewer to fetch ahead into";

  const Status small = Way("zero2", "50%").status();
  EXPECT_EQ(small.id(), ErrorId::kRcacheTooSmall);
  EXPECT_NE(small.Format().find("rcache=" + std::to_string(layout_.RcacheBytes(0, 40))),
            std::string::npos)
      << small.Format();
}

TEST_F(ModuleWayTest, TheFewestBlocksNeedAnOrder) {
  const Status unknown = Way("zero3", "auto", false).status();
  EXPECT_EQ(unknown.id(), ErrorId::kUsageError);
  EXPECT_NE(unknown.Format().find("example"), std::string::npos) << unknown.Format();
}

}  // namespace auto_rcache_test
}  // namespace tidepool::trainer

// What --rcache auto decides and says, and the file of rates that it may read.
#include "trainer/advice/rcache_choice.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "base/units.h"
#include "tests/trainer/plan/twenty_layers.h"
#include "trainer/plan/replay.h"
#include "trainer/run/describe_plan.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace rcache_choice_test {

constexpr uint64_t kChunk = kTwentyChunk;  // elements

class Choice : public ::testing::Test {
 protected:
  void SetUp() override {
    layout_ = TwentyLayers();
    profile_.trace = TwentyLayersInTurn();
    profile_.activation_bytes = 400'000;
    profile_.buffer_bytes = 10'000;
    task_.layout = &layout_;
    task_.profile = &profile_;
    task_.room.capacity = 2'000'000;
    task_.room.spare = kChunk * 2;
    task_.room_origin = "--device-memory";
  }

  // 2 GPUs of Elixir v2's table 4: states come first there.
  void GiveRates() {
    task_.device_updates = true;
    task_.rates = RatesOfFile{{50, 40, 6.5, 100}, "two.json", "Elixir v2, table 4"};
  }

  ChunkLayout layout_;
  StepProfile profile_;
  ChoiceTask task_;
};

TEST_F(Choice, IsAllBlocksThatFitAndSaysWhereTheRestGoes) {
  const RcacheChoice choice = ChooseRcache(task_).value();
  const uint64_t allowed = (2'000'000 - kChunk * 2 - 10'000 - 500'000) / 20 * 19;
  EXPECT_EQ(choice.allowed_bytes, allowed);
  EXPECT_EQ(choice.share.blocks, allowed / (kChunk * 2));
  EXPECT_EQ(choice.smallest_blocks, 1U);
  EXPECT_EQ(choice.most_blocks, 20U);
  EXPECT_EQ(choice.left_bytes, allowed % (kChunk * 2));
  EXPECT_FALSE(choice.with_states);
  // Half of each chunk goes to each of two ranks: 20 fetches in forward, and those that the blocks
  // do not keep in backward.
  EXPECT_EQ(choice.bytes_up(), (20 + 20 - choice.share.blocks) * kChunk);
  EXPECT_EQ(choice.bytes_down(), 20 * kChunk);
  const std::string text = DescribeChoice(choice);
  for (const char* part :
       {"chosen    9 blocks", "--device-memory", "activations 391 KiB, counted x 1.25",
        "5 % are kept back", "at least", "are not weighed: the host is the device"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in:\n" << text;
  }
}

#ifndef TIDEPOOL_SANITIZED  // two minutes there, for a loop that shorter orders run too
// As the experts of a large model have it: so many chunks that few sizes are replayed, none of
// which need be near the largest that fits.
TEST_F(Choice, IsTheLargestThatFitsForALongOrderToo) {
  constexpr uint32_t kLayers = 2000;
  layout_ = TwentyLayers(kLayers);
  profile_.trace = TwentyLayersInTurn(kLayers);
  ASSERT_EQ(layout_.chunks.size(), kLayers);
  const AccessSchedule order = ForeseeOrder(profile_.trace, layout_, 0, 1);
  ASSERT_LT(SizesOf(order, EvictableMask(layout_)).size(), 100U) << "an order that is not long";
  for (const uint64_t fit : {3U, 777U, 1999U}) {
    task_.limit = RcacheLimit{fit * kChunk * 2 + 5, "--rcache"};
    const RcacheChoice choice = ChooseRcache(task_).value();
    EXPECT_EQ(choice.share.blocks, fit);
    EXPECT_EQ(choice.left_bytes, 5U);
    EXPECT_EQ(choice.bytes_up(), (kLayers + kLayers - fit) * kChunk);
  }
}
#endif

TEST_F(Choice, CountsWhatIsMovedAsAReplayDoes) {
  task_.micro_batches = 3;
  const RcacheChoice choice = ChooseRcache(task_).value();
  const AccessSchedule order = ForeseeOrder(profile_.trace, layout_, 0, 3);
  const StepTraffic traffic = TrafficOf(
      BeladySimulate(order, {EvictableMask(layout_), choice.share.blocks, {}}).value(), layout_);
  EXPECT_EQ(choice.bytes_up(), traffic.bytes_h2d);
  EXPECT_EQ(choice.bytes_down(), traffic.bytes_d2h);
}

TEST_F(Choice, TakesNoMoreThanSavesAnything) {
  task_.room.capacity = 100'000'000;
  EXPECT_EQ(ChooseRcache(task_).value().share.blocks, 20U);
}

TEST_F(Choice, NamesWhatStatesOnTheDeviceWouldSaveWithoutApplyingIt) {
  GiveRates();
  const RcacheChoice choice = ChooseRcache(task_).value();
  ASSERT_TRUE(choice.with_states);
  EXPECT_GT(choice.with_states->states_gain, choice.with_states->blocks_gain);
  EXPECT_GT(choice.with_states->best.uploads, 0U);
  EXPECT_LT(choice.with_states->best.blocks, choice.share.blocks);
  EXPECT_LT(choice.with_states->best.seconds, choice.share.seconds);
  EXPECT_EQ(choice.share.uploads, 0U);
  // Master and two moments of 4 bytes, copy and gradient of 2: half of a chunk's.
  EXPECT_EQ(choice.with_states->best.states_bytes,
            choice.with_states->best.uploads * 16 * kChunk / 2);
  EXPECT_NE(DescribeChoice(choice).find("not applied: --gpu-states puts states there"),
            std::string::npos);
  task_.rates->rates.device_update = 0;
  EXPECT_NE(DescribeChoice(ChooseRcache(task_).value()).find("two.json has no rates of updates"),
            std::string::npos);
}

TEST_F(Choice, IsToldInThePlanAndItsJson) {
  GiveRates();
  RunOptions options;
  options.model.preset = "tiny";
  RunPlan plan = MakeRunPlan(options, 1, 0, "told").value();
  EXPECT_EQ(PlanJson(plan).find("\"choice\""), std::string::npos);
  plan.choice = ChooseRcache(task_).value();
  EXPECT_NE(DescribePlan(plan).find("\nchosen    9 blocks: of "), std::string::npos)
      << DescribePlan(plan);
  const std::string json = PlanJson(plan);
  for (const char* part :
       {"\"choice\":{\"blocks\":9,", "\"activation_bytes\":400000",
        "\"origin\":\"Elixir v2, table 4\"",
        "\"states_on_device\":{\"weighed\":true,\"applied\":false,\"chunks\":"}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << " is missing in:\n" << json;
  }
}

TEST_F(Choice, ThatHasNoRoomSaysWhoHasIt) {
  for (const uint64_t capacity : {100'000U, 640'000U}) {
    task_.room.capacity = capacity;
    const Status status = ChooseRcache(task_).status();
    EXPECT_EQ(status.id(), ErrorId::kRcacheTooSmall);
    const std::string text = status.Format();
    for (const char* part : {"--rcache auto", "activations 391 KiB",
                             "one chunk that stands in after a failure 128 KiB",
                             "--checkpoint-activations", "--rcache 131072"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in:\n" << text;
    }
  }
}

// 20 chunks are fetched once in any case; with b blocks, 20 - b of them again: as much for each of
// two ranks as half of that.
TEST_F(Choice, OnTheHostTakesTheFewestBlocksWhoseFetchesAreNotNoticed) {
  const auto needed_for = [](uint64_t again) {
    return static_cast<double>(again * kChunk) * 32 / 0.01;  // kChunk: bytes of a rank's shard
  };
  profile_.arithmetic = 0;
  EXPECT_EQ(ChooseHostBlocks(task_), 20U);
  profile_.arithmetic = needed_for(5);
  EXPECT_EQ(ChooseHostBlocks(task_), 15U);
  profile_.arithmetic = needed_for(5) * 0.999;
  EXPECT_EQ(ChooseHostBlocks(task_), 16U);
  profile_.arithmetic = needed_for(19);
  EXPECT_EQ(ChooseHostBlocks(task_), 1U);
  task_.room = {};
  EXPECT_EQ(ChooseHostBlocks(task_), 1U) << "the room is not looked at";
}

class RatesFile : public ::testing::Test {
 protected:
  Result<RatesOfFile> Read(const std::string& text, uint32_t ranks) const {
    std::ofstream(path_) << text;
    return ReadRates(path_, ranks);
  }
  void ExpectBad(const std::string& text, const std::string& why) const {
    const Status status = Read(text, 1).status();
    EXPECT_EQ(status.id(), ErrorId::kConfigBadValue) << text;
    EXPECT_NE(status.Format().find(why), std::string::npos) << status.Format();
  }

  ~RatesFile() override { std::remove(path_.c_str()); }

  const std::string path_ = ::testing::TempDir() + "rates." + std::to_string(getpid()) + ".json";
};

constexpr const char* kTwo = R"({"origin": "measured by hand", "rates": [
  {"ranks": 1, "to_device_gb_per_s": 22, "from_device_gb_per_s": 16.5, "host_update_g_elements_per_s": 5, "device_update_g_elements_per_s": 50},
  {"ranks": 2, "to_device_gb_per_s": 50, "from_device_gb_per_s": 40}]})";

TEST_F(RatesFile, HasRatesByNumberOfRanks) {
  const RatesOfFile one = Read(kTwo, 1).value();
  EXPECT_EQ(one.origin, "measured by hand");
  EXPECT_EQ(one.rates.to_device, 22);
  EXPECT_EQ(one.rates.from_device, 16.5);
  EXPECT_EQ(one.rates.host_update, 5);
  EXPECT_EQ(one.rates.device_update, 50);
  const RatesOfFile two = Read(kTwo, 2).value();
  EXPECT_EQ(two.rates.to_device, 50);
  EXPECT_EQ(two.rates.device_update, 0) << "nothing is guessed";
}

// As memserver writes it.
constexpr const char* kMeasured =
    R"({"origin": "measured by memserver on box", "machine": "box", "device": "cuda", "rates": [)"
    R"({"ranks": 1, "to_device_gb_per_s": 22, "from_device_gb_per_s": 16},)"
    R"({"ranks": 2, "to_device_gb_per_s": 40, "from_device_gb_per_s": 30}]})";

TEST_F(RatesFile, OfAnotherMachineOrDeviceIsAnErrorWhereItWasGiven) {
  std::ofstream(path_) << kMeasured;
  EXPECT_EQ(ReadRatesHere(path_, {2, "box", "cuda"})->rates.to_device, 40);
  const Status machine = ReadRatesHere(path_, {2, "laptop", "cuda"}).status();
  EXPECT_EQ(machine.id(), ErrorId::kConfigBadValue);
  EXPECT_NE(machine.Format().find("another machine: box; this is laptop"), std::string::npos)
      << machine.Format();
  const Status device = ReadRatesHere(path_, {2, "box", "cpu"}).status();
  EXPECT_NE(device.Format().find("--device cuda, not cpu"), std::string::npos) << device.Format();

  std::ofstream(path_) << kTwo;
  EXPECT_EQ(ReadRatesHere(path_, {2, "laptop", "cpu"})->rates.to_device, 50)
      << "a file that names no machine is for whoever gives it";
}

TEST_F(RatesFile, ThatMemserverHasLeftIsUsedOrLeftOutWithALine) {
  std::ofstream(path_) << kMeasured;
  const FoundRates found = FindRates(path_, {1, "box", "cuda"});
  ASSERT_TRUE(found.rates);
  EXPECT_EQ(found.rates->rates.to_device, 22);
  EXPECT_EQ(found.rates->origin, "measured by memserver on box");

  const auto why_not = [this](const RatesWanted& wanted) {
    const FoundRates none = FindRates(path_, wanted);
    EXPECT_FALSE(none.rates);
    return none.why_not;
  };
  EXPECT_NE(why_not({1, "laptop", "cuda"}).find("another machine: box"), std::string::npos);
  EXPECT_NE(why_not({1, "box", "cpu"}).find("--device cuda"), std::string::npos);
  EXPECT_NE(why_not({3, "box", "cuda"}).find("no rates for 3 ranks, only for 1, 2"),
            std::string::npos);
  std::ofstream(path_) << "[";
  EXPECT_NE(why_not({1, "box", "cuda"}).find("not a JSON object"), std::string::npos);
  std::remove(path_.c_str());
  EXPECT_NE(why_not({1, "box", "cuda"}).find("memserver has measured none at " + path_),
            std::string::npos);
}

TEST_F(RatesFile, WithoutWhatIsAskedForSaysSo) {
  const Status four = Read(kTwo, 4).status();
  EXPECT_NE(four.what().find("no rates for 4 ranks, only for 1, 2"), std::string::npos)
      << four.what();
  EXPECT_EQ(ReadRates(path_ + ".none", 1).status().id(), ErrorId::kConfigUnreadable);
  ExpectBad("", "not a JSON object");
  ExpectBad("{", "not a JSON object");
  ExpectBad(R"({"origin": "x"})", "no array \"rates\"");
  ExpectBad(R"({"origin": "x", "rates": [{}]})", "no number of \"ranks\"");
  ExpectBad(R"({"origin": "x", "rates": [{"ranks": 1, "to_device_gb_per_s": 0}]})",
            "to_device_gb_per_s must be a number above 0");
  ExpectBad(R"({"origin": "x", "rates": [{"ranks": 1, "to_device_gb_per_s": 1}]})", "missing");
  ExpectBad(R"({"rates": [{"ranks": 1, "to_device_gb_per_s": 1, "from_device_gb_per_s": 1}]})",
            "\"origin\" does not say");
}

}  // namespace rcache_choice_test
}  // namespace tidepool::trainer

// ParameterCache in memory of a device: the streams find and bring what the host does, whatever
// comes first, and nothing hangs.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "tests/fakes/fake_cuda/fake_cuda.h"
#include "tests/trainer/cache/toy_run.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {
namespace device_cache_test {

ToyConfig Toy(uint64_t seed, uint32_t world) {
  ToyConfig config;
  config.model = MakeToyModel(seed, 6, 1);
  config.layout.world = world;
  config.layout.chunk_bytes = 192 * 4;  // a few parameters each
  config.cache.seed = seed;
  config.cache.prefetch_depth = seed % 4;
  config.cache.separate_while_recording = seed % 2 == 0;
  config.micro_batches = 1 + seed % 3;
  return config;
}

// All that is decided and moved. What was late, and how long the CPU stood still, is a matter of
// time.
void ExpectAlike(const ToyRankResult& device, const ToyRankResult& host) {
  EXPECT_EQ(device.decisions, host.decisions);
  EXPECT_EQ(device.schedule, host.schedule);
  EXPECT_EQ(device.followed, host.followed);
  ASSERT_EQ(device.after_step.size(), host.after_step.size());
  for (size_t step = 0; step < host.after_step.size(); ++step) {
    const CacheCounters &a = device.after_step[step], &b = host.after_step[step];
    EXPECT_EQ(a.hits, b.hits);
    EXPECT_EQ(a.ahead, b.ahead);
    EXPECT_EQ(a.misses, b.misses);
    EXPECT_EQ(a.prefetches, b.prefetches);
    EXPECT_EQ(a.evictions, b.evictions);
    EXPECT_EQ(a.submits, b.submits);
    EXPECT_EQ(a.deviations, b.deviations);
    EXPECT_EQ(a.bytes_h2d, b.bytes_h2d);
    EXPECT_EQ(a.bytes_d2h, b.bytes_d2h);
    EXPECT_LE(a.late_prefetches, a.prefetches);
  }
}

void ExpectAsOnTheHost(ToyConfig config) {
  config.blocks = SmallestFor(config) + 1;
  const ToyResult host = RunToy(config);
  ASSERT_NO_FATAL_FAILURE(ExpectGood(host));
  config.on_device = true;
  const ToyResult device = RunToy(config);
  ASSERT_NO_FATAL_FAILURE(ExpectGood(device));
  for (Rank rank = 0; rank < config.layout.world; ++rank)
    ExpectAlike(device.ranks[rank], host.ranks[rank]);
}

TEST(DeviceCache, OneRankTrainsAsOnTheHostInEveryOrderOfStreamsAndServer) {
  uint64_t late = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    ToyConfig config = Toy(seed, 1);
    const uint64_t smallest = SmallestFor(config);
    for (uint64_t blocks = smallest; blocks < smallest + 3; ++blocks) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", blocks " + std::to_string(blocks));
      config.blocks = blocks;
      config.on_device = false;
      const ToyResult host = RunToy(config);
      ASSERT_NO_FATAL_FAILURE(ExpectGood(host));
      config.on_device = true;
      for (config.delay_seed = 1; config.delay_seed <= 3; ++config.delay_seed) {
        const ToyResult device = RunToy(config);
        ASSERT_NO_FATAL_FAILURE(ExpectGood(device));
        ASSERT_NO_FATAL_FAILURE(ExpectAlike(device.ranks[0], host.ranks[0]));
        late += device.ranks[0].after_step.back().late_prefetches;
      }
    }
  }
  EXPECT_GT(late, 0u) << "operators that stand before a prefetch are seen";
}

TEST(DeviceCache, RanksTrainAsOnTheHostWithCollectivesInStreamsOrStaged) {
  for (uint32_t world = 2; world <= 3; ++world) {
    ToyConfig config = Toy(world, world);
    config.blocks = SmallestFor(config) + 1;
    const ToyResult host = RunToy(config);
    ASSERT_NO_FATAL_FAILURE(ExpectGood(host));
    config.on_device = true;
    for (const bool streams : {true, false}) {
      for (config.delay_seed = 1; config.delay_seed <= 3; ++config.delay_seed) {
        SCOPED_TRACE("world " + std::to_string(world) + ", streams " + std::to_string(streams));
        config.streams_of_groups = streams;
        const ToyResult device = RunToy(config);
        ASSERT_NO_FATAL_FAILURE(ExpectGood(device));
        for (Rank rank = 0; rank < world; ++rank) ExpectAlike(device.ranks[rank], host.ranks[rank]);
      }
    }
  }
}

// Flags alone order the threads: a thread sanitizer sees what they leave unordered.
TEST(DeviceCache, StreamsWithThreadsOfTheirOwnTrainAsOnTheHost) {
  for (uint32_t world = 1; world <= 2; ++world) {
    ToyConfig config = Toy(3, world);
    config.steps = 3;
    config.threads = true;
    ExpectAsOnTheHost(config);
  }
}

TEST(DeviceCache, ExpertsAreTrainedAsOnTheHost) {
  ToyConfig config = Toy(4, 2);
  config.model = MakeToyModel(9, 6, 3);
  config.layout.data_groups = {{0, 1}, {0}, {1}};
  ExpectAsOnTheHost(config);
}

TEST(DeviceCache, FrozenChunksAndALeftOrderAreAsOnTheHost) {
  ToyConfig config = Toy(4, 2);
  FreezeEveryThird(&config.model, 2);
  config.shuffle_second_half = true;
  ExpectAsOnTheHost(config);
}

TEST(DeviceCache, AnErrorAtAnyRequestEndsTheRunAndHangsNothing) {
  ToyConfig config = Toy(5, 1);
  config.steps = 2;
  config.evaluate = false;
  config.blocks = SmallestFor(config);
  config.on_device = true;
  const ToyResult good = RunToy(config);
  ASSERT_NO_FATAL_FAILURE(ExpectGood(good));
  const uint64_t requests = good.ranks[0].requests;
  for (uint64_t request = 1; request <= requests; request += 3) {
    for (const bool answered : {false, true}) {
      ToyConfig failing = config;
      (answered ? failing.fail_answer_of : failing.fail_from) = request;
      const ToyResult result = RunToy(failing);
      EXPECT_EQ(result.ranks[0].status.id(), ErrorId::kServerGone)
          << request << ": " << result.ranks[0].status.Format();
      EXPECT_FALSE(result.weights_right) << "the last step was sealed";
    }
  }
}

TEST(DeviceCache, AnErrorOfOneRankEndsTheOthers) {
  ToyConfig config = Toy(6, 2);
  config.steps = 2;
  config.blocks = SmallestFor(config);
  config.on_device = true;
  const uint64_t requests = RunToy(config).ranks[0].requests;
  for (uint64_t request = 1; request <= requests; request += 7) {
    config.fail_answer_of = request;
    const ToyResult result = RunToy(config);
    EXPECT_EQ(result.ranks[0].status.id(), ErrorId::kServerGone) << request;
    EXPECT_FALSE(result.ranks[1].status.ok()) << request;
  }
}

// The stand-in for the CUDA driver: its streams have threads, and a CPU that touches its memory
// faults.
class OnMemoryThatFaults : public ::testing::TestWithParam<device::ExportForm> {
 protected:
  void SetUp() override {
    fake_cuda::FakeCuda::Load().Reset();
    auto device = device::CudaDevice::Open({.form = GetParam()});
    ASSERT_TRUE(device.ok()) << device.status().Format();
    device_ = std::move(device).value();
  }
  std::unique_ptr<device::CudaDevice> device_;
};

TEST_P(OnMemoryThatFaults, TrainsAsOnTheHost) {
  for (uint32_t world = 1; world <= 2; ++world) {
    SCOPED_TRACE("world " + std::to_string(world));
    ToyConfig config = Toy(3 + world, world);
    config.steps = 3;
    config.device = device_.get();
    ExpectAsOnTheHost(config);
  }
}

TEST_P(OnMemoryThatFaults, AnErrorEndsTheRunAndHangsNothing) {
  ToyConfig config = Toy(5, 1);
  config.steps = 2;
  config.evaluate = false;
  config.blocks = SmallestFor(config);
  config.on_device = true;
  config.device = device_.get();
  const uint64_t requests = RunToy(config).ranks[0].requests;
  for (const uint64_t request : {uint64_t{1}, requests / 3, requests / 2, requests}) {
    config.fail_answer_of = request;
    const ToyResult result = RunToy(config);
    EXPECT_EQ(result.ranks[0].status.id(), ErrorId::kServerGone)
        << request << ": " << result.ranks[0].status.Format();
    EXPECT_FALSE(result.weights_right);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, OnMemoryThatFaults,
                         ::testing::Values(device::ExportForm::kVmm, device::ExportForm::kIpc),
                         [](const ::testing::TestParamInfo<device::ExportForm>& form) {
                           return std::string(form.param == device::ExportForm::kVmm ? "Vmm"
                                                                                     : "Ipc");
                         });

}  // namespace device_cache_test
}  // namespace tidepool::trainer

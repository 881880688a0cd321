// Bits do not depend on how the work is cut: with clipping on, weights after 30 steps are
// bit-identical for every setting below.
#include <gtest/gtest.h>

#include "tests/trainer/parity/rig.h"

namespace tidepool::trainer {
namespace invariance_test {

class Invariance : public ::testing::Test {
 protected:
  static const RigResult& Baseline() {
    static const RigResult result = TrainThroughServer(DefaultRig());
    return result;
  }
};

TEST_F(Invariance, OfTheRcacheSize) {
  for (const char* rcache : {"15%", "25%", "100%"}) {
    SCOPED_TRACE(rcache);
    RigOptions options = DefaultRig();
    options.run.memory.rcache = rcache;
    EXPECT_TRUE(SameBits(TrainThroughServer(options), Baseline()));
  }
}

// DDP's, ZeRO-2's and ZeRO-3's way with the bytes of a chunk, with one rank and with several; and
// whatever lies between them by the size of the rCache.
TEST_F(Invariance, OfThePlan) {
  for (const uint32_t world : {1u, 3u}) {
    RigOptions options = DefaultRig();
    options.run.training.steps = 3;
    options.run.training.micro_batches = 2;
    options.world = world;
    const RigResult baseline = TrainThroughServer(options);
    for (const char* plan : {"ddp", "zero2", "zero3"}) {
      SCOPED_TRACE(std::string(plan) + ", " + std::to_string(world) + " ranks");
      options.run.memory.plan = plan;
      options.run.memory.rcache = options.run.memory.plan == "zero3" ? "15%" : "100%";
      const RigResult result = TrainThroughServer(options);
      EXPECT_TRUE(SameBits(result, baseline));
      // The first step records.
      for (size_t step = 1; step < result.moved_groups.size(); ++step) {
        EXPECT_GT(SumOf(result.planned_groups[step]).fetched, 0u);
        EXPECT_EQ(result.moved_groups[step], result.planned_groups[step]);
      }
    }
  }
}

TEST_F(Invariance, OfTheChunkSize) {
  for (const char* chunk : {"24KiB", "64KiB"}) {
    SCOPED_TRACE(chunk);
    RigOptions options = DefaultRig();
    options.run.memory.chunk_size = chunk;
    EXPECT_TRUE(SameBits(TrainThroughServer(options), Baseline()));
  }
}

TEST_F(Invariance, OfTheNumberOfWorkers) {
  RigOptions options = DefaultRig();
  options.adam_threads = 2;
  EXPECT_TRUE(SameBits(TrainThroughServer(options), Baseline()));
}

// Random bits and scale blocks belong to parameters: not to chunks, pieces, workers or instruction
// sets.
TEST_F(Invariance, OfEverythingWithSmallerStates) {
  for (const char* states : {"split-bf16", "split-8bit"}) {
    SCOPED_TRACE(states);
    RigOptions options = DefaultRig();
    options.run.training.steps = 12;
    options.run.model.dtype = "bf16";
    options.run.optimizer.states = states;
    const RigResult baseline = TrainThroughServer(options);
    options.run.memory.chunk_size = "24KiB";
    options.adam_threads = 2;
    options.isa = optim::IsaLevel::kV2;
    options.tuning = {1024};
    EXPECT_TRUE(SameBits(TrainThroughServer(options), baseline));
  }
}

TEST_F(Invariance, OfPrefetching) {
  RigOptions options = DefaultRig();
  options.run.memory.prefetch = false;
  EXPECT_TRUE(SameBits(TrainThroughServer(options), Baseline()));
}

TEST_F(Invariance, OfTheInstructionSet) {
  for (const optim::IsaLevel isa :
       {optim::IsaLevel::kScalarReference, optim::IsaLevel::kV2, optim::IsaLevel::kV3}) {
    SCOPED_TRACE(optim::NameOf(isa));
    RigOptions options = DefaultRig();
    options.isa = isa;
    EXPECT_TRUE(SameBits(TrainThroughServer(options), Baseline()));
  }
}

TEST_F(Invariance, OfActivationCheckpointing) {
  RigOptions options = DefaultRig();
  options.run.model.activation_checkpointing = true;
  EXPECT_TRUE(SameBits(TrainThroughServer(options), Baseline()));
}

TEST_F(Invariance, OfKeepingGradientsApartWhileRecording) {
  RigOptions options = DefaultRig();
  options.separate_while_recording = true;
  EXPECT_TRUE(SameBits(TrainThroughServer(options), Baseline()));
}

// A different seed must give different weights, or SameBits would prove nothing.
TEST_F(Invariance, DoesNotHoldForAnotherSeed) {
  RigOptions options = DefaultRig();
  options.run.model.seed = 2;
  EXPECT_FALSE(SameBits(TrainThroughServer(options), Baseline()));
}

// Bytes that the counters saw are the bytes that the plan names, in every step that followed a
// plan; evictions move none.
TEST_F(Invariance, TheoryMeetsCounters) {
  for (const uint32_t micro_batches : {1u, 2u}) {
    RigOptions options = DefaultRig();
    options.run.training.steps = 6;
    options.run.memory.rcache = "25%";
    options.run.training.micro_batches = micro_batches;
    const RigResult result = TrainThroughServer(options);
    ASSERT_EQ(result.moved.size(), 6u);
    EXPECT_EQ(result.planned.front().bytes_h2d, 0u) << "the first step records";
    for (size_t step = 1; step < result.moved.size(); ++step) {
      SCOPED_TRACE(step);
      EXPECT_GT(result.planned[step].bytes_h2d, 0u);
      EXPECT_EQ(result.moved[step].bytes_h2d, result.planned[step].bytes_h2d);
      EXPECT_EQ(result.moved[step].bytes_d2h, result.planned[step].bytes_d2h);
    }
  }
}

}  // namespace invariance_test
}  // namespace tidepool::trainer

// A whole serve loop in one process: weights in, parameters out, gradients in, steps sealed.
#include "memserver/serve_loop.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/fakes/adam_model.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {
namespace {

float WeightAt(ChunkId chunk, uint64_t i) { return 0.01F * static_cast<float>(i % 37) - 0.1F * static_cast<float>(chunk + 1); }
float GradientAt(ChunkId chunk, uint64_t i, Version step) {
  return std::sin(0.1F * static_cast<float>(i) + static_cast<float>(chunk) + 0.5F * static_cast<float>(step));
}

TEST(ServeLoop, OneRankTrainsThreeSteps) {
  ServeWorld world;
  const shm::JobSpec spec = MakeSpec({});
  auto rank = world.Join(spec, 0);
  ASSERT_NE(rank, nullptr);
  const auto attached = world.TakeReply<Attached>();
  ASSERT_TRUE(attached);
  EXPECT_FALSE(attached->weights_ready);
  EXPECT_EQ(attached->pool_bytes, shm::StateBytesOf(spec).total());

  AdamModel model(spec);
  for (ChunkId chunk = 0; chunk < 2; ++chunk) {
    for (uint64_t i = 0; i < 192; ++i) model.weights(chunk)[i] = rank->At<float>(0)[i] = WeightAt(chunk, i);
    EXPECT_EQ(world.Await(rank.get(), rank->Put(chunk, 0, 192, 0)).error, 0u);
  }
  for (Version step = 0; step < 3; ++step) {
    for (ChunkId chunk = 0; chunk < 2; ++chunk) {
      for (uint64_t i = 0; i < 192; ++i) model.gradients(chunk)[i] = rank->At<float>(4096)[i] = GradientAt(chunk, i, step);
      EXPECT_EQ(world.Await(rank.get(), rank->Submit({chunk, 0, 192, 4096, step, 0})).error, 0u);
    }
    const double norm = model.Step(0.01, 1);
    const shm::Completion end = world.Await(rank.get(), rank->EndStep(step, 0.01F));
    EXPECT_EQ(end.error, 0u);
    EXPECT_EQ(end.version, step + 1);
    EXPECT_NEAR(end.grad_norm, norm, 1e-5 * norm);
    for (ChunkId chunk = 0; chunk < 2; ++chunk) {
      const shm::Completion fetched = world.Await(rank.get(), rank->Fetch(chunk, 0, 192, 8192, step + 1));
      EXPECT_EQ(fetched.bytes, 192u * 4);
      for (uint64_t i = 0; i < 192; ++i) {
        // Padding (elements 91 to 95) keeps what was put there.
        EXPECT_NEAR(rank->At<float>(8192)[i], model.weights(chunk)[i], 1e-5) << "chunk " << chunk << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tidepool::memserver

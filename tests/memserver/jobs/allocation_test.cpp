// The data plane allocates nothing once a job is attached: every allocation of this thread inside
// Turn is counted.
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>
#include "tests/fakes/small_trainer.h"

namespace {

thread_local bool counting = false;
thread_local uint64_t allocations = 0;

void* Allocate(std::size_t bytes) {
  if (counting) ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return Allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return Allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace tidepool::memserver {
namespace {

uint64_t AllocationsOfOneStep(ServeWorld* world, SmallTrainer* trainer, Version version) {
  allocations = 0;
  const auto turn = [world] {
    counting = true;
    world->loop().Turn();
    counting = false;
  };
  FakeRank& rank = trainer->rank(0);
  for (uint32_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
    for (ChunkId chunk = 0; chunk < 3; ++chunk)
      rank.Submit({chunk, 0, 192, 4096 * chunk, version, micro_batch});
  }
  rank.EndStep(version, 0.01F);
  for (ChunkId chunk = 0; chunk < 3; ++chunk) rank.Fetch(chunk, 0, 192, 4096 * chunk, version + 1);
  for (int answers = 0; answers < 10;) {
    turn();
    while (rank.Take()) ++answers;
  }
  return allocations;
}

TEST(Allocation, AStepOfTheDataPlaneTakesNone) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.dtype = DType::kBF16, .chunks = 3, .micro_batches = 2}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(1);
  // Queues and a worker's list of runs grow to their size in the first steps.
  AllocationsOfOneStep(&world, &trainer, 0);
  AllocationsOfOneStep(&world, &trainer, 1);
  EXPECT_EQ(AllocationsOfOneStep(&world, &trainer, 2), 0u);
  EXPECT_EQ(AllocationsOfOneStep(&world, &trainer, 3), 0u);
}

}  // namespace
}  // namespace tidepool::memserver

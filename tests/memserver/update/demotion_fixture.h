// Two jobs of a simulated server: the first loses its ranks, the second needs the room that the
// states of the first have on the host.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shm/spec/state_bytes.h"
#include "tests/fakes/small_job.h"

namespace tidepool::memserver {
namespace demotion_fixture {

struct Shape {
  DType dtype = DType::kBF16;
  uint32_t world = 1;
  uint32_t micro_batches = 1;
  OptimizerRule rule = OptimizerRule::kAdamW;
  uint64_t chunk_elements = 4096;
  uint32_t chunks = 4;
  StateForm states = StateForm::kF32;
  uint32_t f32_chunks = 0;
};

inline shm::JobSpec SpecOf(const Shape& shape, const std::string& name = "gpt") {
  shm::JobSpec spec = SmallJob({.name = name,
                                .dtype = shape.dtype,
                                .world = shape.world,
                                .micro_batches = shape.micro_batches,
                                .chunk_elements = shape.chunk_elements,
                                .chunks = shape.chunks,
                                .f32_chunks = shape.f32_chunks});
  spec.optimizer.rule = shape.rule;
  spec.optimizer.states = shape.states;
  spec.optimizer.momentum = 0.9;
  return spec;
}

inline uint64_t HostBytes(const shm::JobSpec& spec, ChunkId first_spilled = shm::kNoSpill) {
  return shm::HostStateBytesOf(spec, first_spilled).total();
}

// Places that the first job leaves are too short for a plane of the second one.
inline uint64_t Scraps(const shm::JobSpec& spec) {
  return RoundUp(shm::StateBytesOf(spec).records, kPageBytes) +
         RoundUp(spec.chunks[0].elements * sizeof(float), kPageBytes);
}

// The pool has room for the second job when the first is on NVMe, and not before.
inline WorldOptions RoomForOne(const shm::JobSpec& spec, uint32_t directories = 1) {
  WorldOptions options;
  options.pool_bytes = HostBytes(spec) + HostBytes(spec, 0) + Scraps(spec);
  options.nvme_directories = directories;
  options.nvme_bytes = 2 * shm::NvmeBytesOf(spec, 0);
  options.loop.times.lease_ns = 3600 * kNsPerSecond;
  // So that it does not simply spill.
  options.loop.quotas = {{JobAccount("second"), {.nvme_limit = 0}}};
  return options;
}

inline void ExpectSums(const ServeWorld& world) {
  uint64_t pool = 0, nvme = 0;
  for (const auto& job : world.tables().jobs) {
    pool += job->states->pool_bytes();
    nvme += job->states->nvme_total();
  }
  auto& tables = const_cast<ServeWorld&>(world);
  ASSERT_EQ(pool + tables.pool().free_bytes(), tables.pool().total_bytes());
  ASSERT_EQ(nvme, tables.tier().used_bytes());
}

class Pair {
 public:
  Pair(const Shape& shape, const WorldOptions& options)
      : world(options), first(&world, SpecOf(shape)), second(&world, SpecOf(shape, "second")) {}

  // The first trains, and its ranks are killed.
  void Detach(uint32_t steps) {
    ASSERT_TRUE(first.JoinAll());
    first.PutWeights(7);
    for (uint32_t i = 0; i < steps; ++i) Step();
    LoseFirst();
  }
  void Step() { ASSERT_EQ(first.Step({.learning_rate = 0.05F, .seed = ++seed}).error, 0u); }
  void LoseFirst() {
    for (const auto& rank : first.ranks()) world.Lose(*rank);
    world.Settle();
  }
  // Asks for a slot; the turns are the caller's.
  ConnectionId Ask(const std::string& name = "second", uint32_t uid = 1000) {
    shm::JobSpec spec = second.spec();
    spec.name = name;
    return world.Reserve(spec, 0, uid);
  }
  bool Granted() {
    world.Settle();
    ExpectSums(world);
    return world.TakeReply<ReserveGranted>().has_value();
  }
  Status Refusal() {
    world.Settle();
    ExpectSums(world);
    const auto refused = world.TakeReply<Refused>();
    return refused ? refused->why : Status();
  }
  // The first comes back and takes `steps` more.
  Weights GoOn(uint32_t steps) {
    EXPECT_TRUE(first.JoinAll());
    for (uint32_t i = 0; i < steps; ++i) Step();
    Weights weights = first.FetchAll();
    first.LeaveAll();
    world.Settle();
    return weights;
  }
  const Job* job(const std::string& name = "gpt") const { return world.tables().FindJob(name); }
  // Until `count` turns have passed in which something was done, or nothing is left to do.
  void Turns(uint32_t count) {
    for (uint32_t idle = 0; count > 0 && idle < 50; --count) {
      idle = world.loop().Turn() ? 0 : idle + 1;
      ExpectSums(world);
    }
  }

  ServeWorld world;
  SmallTrainer first, second;
  uint64_t seed = 0;
};

inline Weights OnHost(const Shape& shape, uint32_t steps) {
  WorldOptions options;
  options.pool_bytes = 64 * kMiB;
  Pair run(shape, options);
  EXPECT_TRUE(run.first.JoinAll());
  run.first.PutWeights(7);
  for (uint32_t i = 0; i < steps; ++i) run.Step();
  return run.first.FetchAll();
}

}  // namespace demotion_fixture
}  // namespace tidepool::memserver

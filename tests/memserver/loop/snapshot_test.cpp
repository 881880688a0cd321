// What a snapshot says of the open step and of requests without an answer, taken from the real loop
// at moments that the test chooses.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/fakes/serve_world.h"
#include "tests/fakes/slow_device.h"

namespace tidepool::memserver {
namespace snapshot_test {

constexpr uint64_t kElements = 192;

// One rank, two chunks, two micro-batches; the test does the workers' work and lets copies pass.
class SnapshotTest : public ::testing::Test {
 protected:
  SnapshotTest()
      : world_(Options(&device_)), rank_(world_.Join(MakeSpec({.micro_batches = 2}), 0)) {}
  static WorldOptions Options(device::Device* device) {
    WorldOptions options;
    options.device = device;
    options.loop.run_inline_work = false;
    return options;
  }

  JobRow Look() {
    world_.Settle();
    world_.Post(SnapshotWanted{});
    world_.Settle();
    const auto ready = world_.TakeReply<SnapshotReady>();
    return ready && !ready->snapshot->jobs.empty() ? ready->snapshot->jobs[0] : JobRow{};
  }
  // Until neither copies nor workers have anything left.
  void Work() {
    for (world_.Settle(); device_.busy() > 0 || world_.team().waiting() > 0; world_.Settle()) {
      device_.busy() > 0 ? device_.Move(0, kMiB) : world_.team().RunOne(0);
    }
  }
  void Answered(uint64_t counter) {
    Work();
    EXPECT_EQ(world_.Await(rank_.get(), counter).error, 0u);
  }
  void Load() {
    for (ChunkId chunk = 0; chunk < 2; ++chunk) Answered(rank_->Put(chunk, 0, kElements, 0));
  }
  void Submit(ChunkId chunk, Version version, uint32_t micro_batch) {
    Answered(rank_->Submit({chunk, 0, kElements, 0, version, micro_batch}));
  }
  void RestOfStep(Version version) {
    for (const uint32_t micro_batch : {0u, 1u}) {
      for (const ChunkId chunk : {1u, 0u}) Submit(chunk, version, micro_batch);
    }
  }
  std::string Phase() {
    const StepProgress step = Look().step;
    return std::string(step.phase) + " " + std::to_string(step.micro_batch) + "/" +
           std::to_string(step.micro_batches) + " " + std::to_string(step.chunks_done);
  }

  SlowDevice device_;
  ServeWorld world_;
  std::unique_ptr<FakeRank> rank_;
};

TEST_F(SnapshotTest, GradientsTellWhereTheOpenStepStands) {
  EXPECT_EQ(Phase(), " 0/0 0") << "weights are not there yet";
  Load();
  EXPECT_EQ(Phase(), "forward 1/2 0");
  Submit(1, 0, 0);
  EXPECT_EQ(Phase(), "backward 1/2 1");
  Submit(0, 0, 0);
  EXPECT_EQ(Phase(), "forward 2/2 0");
  Submit(1, 0, 1);
  EXPECT_EQ(Phase(), "backward 2/2 1");
  Submit(0, 0, 1);
  EXPECT_EQ(Phase(), "ending 2/2 2");
  rank_->EndStep(0, 0.1F);
  world_.Settle();
  EXPECT_EQ(Phase(), "updating 0/0 0");
  world_.team().RunOne(0);
  EXPECT_EQ(Phase(), "updating 0/0 1");
  Work();
  EXPECT_EQ(Phase(), "forward 1/2 0");
}

TEST_F(SnapshotTest, RequestsWithoutAnAnswerAreMarked) {
  Load();
  const uint64_t fetch = rank_->Fetch(0, 0, kElements, 0, 0);
  EXPECT_EQ(Look().chunks[0].ranks_fetching, 1u) << "the copy has not passed";
  EXPECT_EQ(Look().chunks[1].ranks_fetching, 0u);
  Answered(fetch);
  EXPECT_EQ(Look().chunks[0].ranks_fetching, 0u);
  EXPECT_EQ(Look().chunks[0].ranks_cached, 1u);
  const uint64_t gradient = rank_->Submit({1, 0, kElements, 0, 0, 0});
  EXPECT_EQ(Look().chunks[1].ranks_sending, 1u);
  EXPECT_EQ(Look().chunks[0].ranks_sending, 0u);
  Answered(gradient);
  EXPECT_EQ(Look().chunks[1].ranks_sending, 0u);
}

TEST_F(SnapshotTest, CountsTheFetchesOfTheLastStepAndThoseThatWaited) {
  Load();
  for (const ChunkId chunk : {0u, 1u}) Answered(rank_->Fetch(chunk, 0, kElements, chunk * 4096, 0));
  RestOfStep(0);
  EXPECT_EQ(Look().step.fetches, 0u) << "no step is sealed";
  rank_->EndStep(0, 0.1F);
  world_.Settle();
  const uint64_t early = rank_->Fetch(0, 0, kElements, 0, 1);
  EXPECT_EQ(Look().chunks[0].ranks_fetching, 1u) << "it waits for the update";
  EXPECT_EQ(Look().step.fetches, 2u);
  EXPECT_EQ(Look().step.fetches_waited, 0u);
  EXPECT_EQ(Look().step.bytes_fetched, 2 * kElements * sizeof(float));
  world_.clock().Advance(3 * kNsPerMs);
  EXPECT_EQ(Look().sessions[0].waits.fetch_ns, 0) << "it waits still";
  EXPECT_EQ(Look().chunks[0].fetched_step, 1u) << "the one that waits has not begun";
  Work();
  while (const auto answer = rank_->Take()) {
    if (answer->counter == early) break;
  }
  RestOfStep(1);
  rank_->EndStep(1, 0.1F);
  Work();
  EXPECT_EQ(Look().step.fetches, 1u);
  EXPECT_EQ(Look().step.fetches_waited, 1u);
  EXPECT_GE(Look().step.fetch_wait_ns, 3 * kNsPerMs);
  EXPECT_LT(Look().step.fetch_wait_ns, 4 * kNsPerMs);
  EXPECT_EQ(Look().sessions[0].waits.fetch_ns, Look().step.fetch_wait_ns);
  EXPECT_EQ(Look().sessions[0].waits.gradient_ns, 0);
  EXPECT_EQ(Look().chunks[0].fetched_step, 2u);
  EXPECT_EQ(Look().chunks[1].fetched_step, 1u) << "the second step did not use it";
}

}  // namespace snapshot_test
}  // namespace tidepool::memserver

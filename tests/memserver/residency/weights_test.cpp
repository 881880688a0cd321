// Jobs whose 16-bit weights are on NVMe too: the same bits as with a pool that holds everything,
// through a window of a few slots, whatever is killed or fails on the way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "memserver/residency/placement.h"
#include "tests/fakes/small_job.h"

namespace tidepool::memserver {
namespace weights_test {

struct Shape {
  DType dtype = DType::kBF16;
  uint32_t world = 1;
  uint32_t micro_batches = 1;
  StateForm states = StateForm::kF32;
  uint64_t chunk_elements = 4096;
  uint32_t chunks = 7;
  uint32_t f32_chunks = 0;
  bool large() const { return chunk_elements > 100'000; }
};

shm::JobSpec SpecOf(const Shape& shape, uint32_t loss_scaling = 0) {
  shm::JobSpec spec = SmallJob({.dtype = shape.dtype,
                                .world = shape.world,
                                .micro_batches = shape.micro_batches,
                                .chunk_elements = shape.chunk_elements,
                                .chunks = shape.chunks,
                                .loss_scaling = loss_scaling,
                                .f32_chunks = shape.f32_chunks});
  spec.optimizer.states = shape.states;
  return spec;
}

// A pool with room only for the gradients and the smallest window; `more` slots besides.
WorldOptions Small(const shm::JobSpec& spec, uint32_t directories = 1, uint64_t more = 0) {
  WorldOptions options;
  options.pool_bytes = shm::LeastHostBytesOf(spec) + more * shm::WeightSlotBytes(spec, 0);
  options.nvme_directories = directories;
  options.nvme_bytes = shm::NvmeBytesOf(spec, 0);
  options.loop.times.lease_ns = kLeaseNs;
  return options;
}

// Where the two differ first; empty where they do not.
std::string Difference(const Weights& a, const Weights& b) {
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (a[i].size() == b[i].size() &&
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) == 0)
      continue;
    size_t at = 0;
    while (at < a[i].size() && at < b[i].size() &&
           std::memcmp(&a[i][at], &b[i][at], sizeof(float)) == 0)
      ++at;
    return "plane " + std::to_string(i) + " of " + std::to_string(a.size()) + ", element " +
           std::to_string(at);
  }
  return a.size() == b.size() ? "" : "their number";
}

// Every version that trainers see, in order; each third step is skipped where the job scales its
// loss.
Weights Trained(ServeWorld* world, const shm::JobSpec& spec, uint32_t steps) {
  SmallTrainer trainer(world, spec);
  EXPECT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  Weights seen = trainer.FetchAll();
  for (uint64_t step = 0; step < steps; ++step) {
    EXPECT_EQ(trainer
                  .Step({.learning_rate = 0.05F,
                         .seed = step + 1,
                         .poisoned = spec.loss_scaling == 1 && step % 3 == 1})
                  .error,
              0u);
    for (auto& chunk : trainer.FetchAll()) seen.push_back(std::move(chunk));
  }
  trainer.LeaveAll();
  world->Settle();
  EXPECT_EQ(world->pool().free_bytes(), world->pool().total_bytes());
  return seen;
}

Weights OnHost(const shm::JobSpec& spec, uint32_t steps) {
  ServeWorld world({.pool_bytes = 64 * kMiB});
  return Trained(&world, spec, steps);
}

class WeightBits : public ::testing::TestWithParam<Shape> {};

TEST_P(WeightBits, AreThoseOfAPoolThatHoldsEverything) {
  const shm::JobSpec spec = SpecOf(GetParam());
  const uint32_t steps = GetParam().large() ? 2 : 4;
  const Weights expected = OnHost(spec, steps);
  for (const uint64_t more : {0, 1, 3}) {
    ServeWorld world(Small(spec, 1 + more % 2, more));
    EXPECT_EQ(Difference(Trained(&world, spec, steps), expected), "") << more;
    EXPECT_EQ(world.tier().used_bytes(), 0u) << "the job gave its ranges back";
    EXPECT_EQ(world.tier().staging_free(), StateTier::kStagingSlots);
  }
}

TEST_P(WeightBits, AreThoseAlsoWhenStepsAreSkipped) {
  const shm::JobSpec spec = SpecOf(GetParam(), 1);
  ServeWorld world(Small(spec));
  EXPECT_EQ(Difference(Trained(&world, spec, 3), OnHost(spec, 3)), "");
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, WeightBits,
    ::testing::Values(
        Shape{}, Shape{DType::kBF16, 2, 2}, Shape{DType::kF16, 3, 1},
        Shape{.states = StateForm::kSplit},
        Shape{.world = 2, .micro_batches = 2, .states = StateForm::kSplit8},
        Shape{.states = StateForm::kSplitBf16, .chunk_elements = 270'336, .chunks = 4},
        Shape{.world = 2, .chunk_elements = 135'168, .chunks = 5},
        Shape{.chunks = 9, .f32_chunks = 2},
        Shape{.world = 2, .states = StateForm::kSplit, .chunks = 8, .f32_chunks = 1}));

// --- kills ---

class WeightKills : public ::testing::TestWithParam<Shape> {};

TEST_P(WeightKills, InTheMiddleOfAnythingChangeNoBit) {
  const shm::JobSpec spec = SpecOf(GetParam());
  Weights expected = OnHost(spec, 2);
  expected.erase(expected.begin(), expected.end() - GetParam().chunks);
#ifdef TIDEPOOL_SANITIZED
  constexpr uint32_t kStride = 13;
#else
  constexpr uint32_t kStride = 3;
#endif
  for (uint32_t turns = 0; turns < 40; turns += kStride) {
    ServeWorld world(Small(spec, 2, turns % 4));
    world.disk().Pace(2);
    SmallTrainer trainer(&world, spec);
    const auto kill = [&] {
      for (uint32_t i = 0; i < turns; ++i) world.loop().Turn();
      world.Restart();
      ASSERT_TRUE(world.recovered().ok()) << world.recovered().Line();
      for (const auto& rank : trainer.ranks()) ASSERT_TRUE(world.Resume(rank.get(), spec));
    };
    ASSERT_TRUE(trainer.JoinAll());
    trainer.PutWeights(7);
    kill();
    for (uint64_t step = 0; step < 2; ++step) {
      // These fetches are in flight when the server is killed.
      for (const auto& rank : trainer.ranks()) rank->Fetch(6, 0, 16, 0, step);
      kill();
      ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = step + 1}).error, 0u);
      kill();
    }
    ASSERT_EQ(Difference(trainer.FetchAll(), expected), "") << "killed after " << turns << " turns";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, WeightKills,
                         ::testing::Values(Shape{}, Shape{.world = 2, .micro_batches = 2},
                                           Shape{.world = 2, .states = StateForm::kSplit}));

// --- ranks that ask for much at once ---

// Ranks that each fetch their shards of chunks in an order of their own, so many at a time.
class Fetching {
 public:
  Fetching(ServeWorld* world, SmallTrainer* trainer, uint32_t at_once)
      : world_(world), trainer_(trainer), at_once_(at_once) {}

  // `orders`: by rank. False when some are not answered in time.
  bool Fetch(const std::vector<std::vector<ChunkId>>& orders) {
    const shm::JobSpec& spec = trainer_->spec();
    std::vector<size_t> sent(orders.size(), 0), answered(orders.size(), 0);
    for (int turn = 0; turn < 20'000; ++turn) {
      bool all = true;
      for (Rank rank = 0; rank < orders.size(); ++rank) {
        FakeRank& end = trainer_->rank(rank);
        while (sent[rank] < orders[rank].size() && sent[rank] - answered[rank] < at_once_) {
          const ChunkId chunk = orders[rank][sent[rank]];
          const uint64_t count = spec.ShardElements(chunk), place = sent[rank]++ % at_once_;
          end.Fetch(chunk, spec.ShardIndex(chunk, rank) * count, count, place * count * 2,
                    trainer_->version());
        }
        while (end.Take()) ++answered[rank];
        all = all && answered[rank] == orders[rank].size();
      }
      if (all) return true;
      if (!world_->loop().Turn()) world_->clock().Advance(kNsPerMs);
    }
    return false;
  }

 private:
  ServeWorld* const world_;
  SmallTrainer* const trainer_;
  const uint32_t at_once_;
};

std::vector<ChunkId> ThereAndBack(uint32_t chunks) {
  std::vector<ChunkId> order;
  for (ChunkId id = 0; id < chunks; ++id) order.push_back(id);
  for (ChunkId id = chunks; id-- > 0;) order.push_back(id);
  return order;
}

TEST(WeightWindows, RanksThatWantMoreChunksAtOnceThanThereAreSlotsAreAllServed) {
  const shm::JobSpec spec = SpecOf({.world = 3, .chunks = 9});
  std::vector<ChunkId> up = ThereAndBack(9), down = up,
                       mixed = {4, 1, 8, 0, 7, 2, 6, 3, 5, 5, 0, 8, 4};
  std::rotate(down.begin(), down.begin() + 9, down.end());
  for (const uint32_t at_once : {1, 3, 7}) {
    ServeWorld world(Small(spec));
    world.disk().Pace(3);
    SmallTrainer trainer(&world, spec);
    ASSERT_TRUE(trainer.JoinAll());
    trainer.PutWeights(7);
    Fetching fetching(&world, &trainer, at_once);
    for (uint64_t step = 0; step < 3; ++step) {
      ASSERT_TRUE(fetching.Fetch({up, down, mixed})) << at_once;
      ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = step + 1}).error, 0u);
    }
  }
}

// Belady's rule in a cycle of forward and backward passes: what the window holds at the end of a
// pass is used first in the next one, and every slot but one keeps its chunk from pass to pass.
TEST(WeightWindows, FromTheThirdStepOnAsFewChunksAreReadAsTheKnownOrderAllows) {
  constexpr uint32_t kChunks = 12, kSlots = 8;
  const shm::JobSpec spec = SpecOf({.chunks = kChunks});
  WorldOptions options = Small(spec, 1, kSlots - 2);
  ServeWorld world(options);
  SmallTrainer trainer(&world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  const WeightWindow& window = world.tables().jobs[0]->states->window();
  ASSERT_EQ(window.slots().size(), kSlots);
  Fetching fetching(&world, &trainer, 1);
  uint64_t fills = 0;
  for (uint64_t step = 0; step < 5; ++step) {
    const uint64_t before = window.fills;
    ASSERT_TRUE(fetching.Fetch({ThereAndBack(kChunks)}));
    ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = step + 1}).error, 0u);
    world.Settle();
    fills = window.fills - before;
  }
  // A step has 24 uses; a least-recently-used window would read nearly every chunk in both passes.
  EXPECT_LE(fills, 2 * (kChunks - kSlots) + 2);
  EXPECT_GT(fills, 0u);
}

TEST(WeightWindows, AFetchThatOnlyHasToBeReadIsServedBeforeItsStepIsSealed) {
  const shm::JobSpec spec = SpecOf({});
  ServeWorld world(Small(spec));
  SmallTrainer trainer(&world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  trainer.Submit({.seed = 1});
  world.disk().Hang(0);
  FakeRank& rank = trainer.rank(0);
  for (ChunkId id = 0; id < 7; ++id) rank.Fetch(id, 0, 64, id * 128, 0);
  rank.EndStep(0, 0.05F);
  for (int i = 0; i < 50; ++i) world.loop().Turn();
  EXPECT_FALSE(rank.Take().has_value());
  EXPECT_EQ(world.tables().jobs[0]->states->sealed_version(), 0u);
  world.disk().Wake();
  world.Settle();
  for (int i = 0; i < 7; ++i) {
    const auto answer = rank.Take();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->error, 0u);
    EXPECT_EQ(answer->version, 0u);
  }
  EXPECT_EQ(rank.Take()->version, 1u) << "then the step";
  EXPECT_EQ(world.tables().jobs[0]->states->sealed_version(), 1u);
}

TEST(WeightWindows, ARankThatGoesTakesItsRequestsWithItAndTheOthersGoOn) {
  const shm::JobSpec spec = SpecOf({.world = 2});
  ServeWorld world(Small(spec));
  SmallTrainer trainer(&world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  world.AwaitWeights(spec.name);
  world.disk().Hang(0);
  for (ChunkId id = 0; id < 7; ++id) trainer.rank(1).Fetch(id, 4096, 64, id * 128, 0);
  for (int i = 0; i < 20; ++i) world.loop().Turn();
  world.Lose(trainer.rank(1));
  for (int i = 0; i < 20; ++i) world.loop().Turn();
  const uint64_t counter = trainer.rank(0).Fetch(6, 0, 64, 0, 0);
  world.disk().Wake();
  EXPECT_EQ(world.Await(&trainer.rank(0), counter).error, 0u);
}

// --- weights that are put ---

TEST(WeightPuts, ARankThatIsAheadWaitsForTheOthersAndOneThatPutsOutOfOrderIsSentAway) {
  const shm::JobSpec spec = SpecOf({.world = 2});
  ServeWorld world(Small(spec));
  SmallTrainer trainer(&world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  FakeRank &first = trainer.rank(0), &second = trainer.rank(1);
  const uint64_t begin = first.Put(0, 0, 4096, 0), ahead = first.Put(1, 0, 4096, 0);
  EXPECT_EQ(world.Await(&first, begin).error, 0u);
  world.Settle();
  EXPECT_FALSE(first.Take().has_value())
      << "there is one place, and the other rank's half of chunk 0 is not in it";
  EXPECT_EQ(world.Await(&second, second.Put(0, 4096, 4096, 0)).error, 0u);
  EXPECT_EQ(world.Await(&first, ahead).error, 0u);
  second.Put(2, 4096, 4096, 0);
  world.Settle();
  const auto over = world.TakeReply<SessionOver>();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->connection, second.connection());
  EXPECT_NE(over->why.what().find("order of their chunks"), std::string::npos) << over->why.what();
}

// --- drives that fail ---

class WeightFaults : public ::testing::Test {
 protected:
  void Start() {
    ASSERT_TRUE(trainer_.JoinAll());
    trainer_.PutWeights(7);
    ASSERT_EQ(trainer_.Step({.learning_rate = 0.05F, .seed = 1}).error, 0u);
    world_.Settle();
  }
  // How the job ends when a chunk is fetched that is in no slot.
  Status Fetched() {
    trainer_.rank(0).Fetch(NotHeld(), 0, 64, 0, 1);
    for (int turn = 0; turn < 1000; ++turn) {
      if (!world_.loop().Turn()) world_.clock().Advance(kNsPerMs);
      if (const auto over = world_.TakeReply<SessionOver>()) return over->why;
    }
    EXPECT_EQ(trainer_.rank(0).Take()->error, 0u);
    return Status();
  }
  ChunkId NotHeld() {
    const JobStates& states = *world_.tables().jobs[0]->states;
    ChunkId id = 6;
    while (states.weights().HoldsWeights(id)) --id;
    return id;
  }

  const shm::JobSpec spec_ = SpecOf({});
  WorldOptions options_ = [this] {
    WorldOptions options = Small(spec_);
    options.tier.late_ns = 20 * kNsPerMs;
    options.tier.lost_ns = 200 * kNsPerMs;
    return options;
  }();
  ServeWorld world_{options_};
  SmallTrainer trainer_{&world_, spec_};
};

TEST_F(WeightFaults, ABitThatFlippedEndsTheJobByNameAndNoWrongByteIsDelivered) {
  Start();
  const std::span<std::byte> bytes = world_.disk().bytes(0);
  for (uint64_t at = kPageBytes + 100; at < bytes.size(); at += kPageBytes)
    bytes[at] ^= std::byte{16};
  const ChunkId chunk = NotHeld();
  const Status why = Fetched();
  EXPECT_EQ(why.id(), ErrorId::kNvmeDataBad);
  EXPECT_NE(why.what().find("of chunk " + std::to_string(chunk)), std::string::npos) << why.what();
  world_.Settle();
  EXPECT_EQ(world_.pool().free_bytes(), world_.pool().total_bytes());
  EXPECT_EQ(world_.tier().staging_free(), StateTier::kStagingSlots);
}

// Reading a piece for its weights ignores its moments.
TEST_F(WeightFaults, DamageBehindTheMasterIsFoundByTheUpdateAlone) {
  const shm::JobSpec large = SpecOf({.chunk_elements = shm::kPieceElements, .chunks = 3});
  WorldOptions options = Small(large);
  ServeWorld world(options);
  SmallTrainer trainer(&world, large);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  const Weights before = trainer.FetchAll();
  const uint64_t piece = kPageBytes + shm::PieceOffset(large, 0, 1) - kPageBytes;
  for (uint32_t slot = 0; slot < 6; ++slot)
    world.disk().bytes(0)[slot * piece + kPageBytes + kMiB + 77] ^= std::byte{1};
  EXPECT_EQ(Difference(trainer.FetchAll(), before), "");
  trainer.Submit({.seed = 1});
  trainer.rank(0).EndStep(0, 0.05F);
  world.Settle();
  EXPECT_EQ(world.TakeReply<SessionOver>()->why.id(), ErrorId::kNvmeDataBad);
}

TEST_F(WeightFaults, ADeviceThatNeverReadsEndsTheJobByName) {
  Start();
  world_.disk().Arm(nvme::DiskFault::kReadError, 1);
  EXPECT_EQ(Fetched().id(), ErrorId::kNvmeIoFailed);
}

TEST_F(WeightFaults, ADeviceThatNeverAnswersEndsTheJobByName) {
  Start();
  world_.disk().Hang(0);
  EXPECT_EQ(Fetched().id(), ErrorId::kNvmeStalled);
  world_.disk().Wake();
  world_.Settle();
  EXPECT_EQ(world_.tier().staging_free(), StateTier::kStagingSlots)
      << "it comes back with the answer";
}

TEST_F(WeightFaults, ErrorsThatPassAreRepairedWithoutATrace) {
  world_.disk().Arm(nvme::DiskFault::kFlipInAnswer, 100);
  for (const auto fault : {nvme::DiskFault::kReadError, nvme::DiskFault::kShort,
                           nvme::DiskFault::kAgain, nvme::DiskFault::kInterrupted}) {
    world_.disk().Arm(fault, 15);
  }
  EXPECT_EQ(Difference(Trained(&world_, spec_, 6), OnHost(spec_, 6)), "");
  EXPECT_GT(world_.disk().faults(), 20u);
}

// What the drive does not take lies in the pool, and is read there, also by the next server.
TEST_F(WeightFaults, WeightsThatADriveDidNotTakeAreReadFromThePool) {
  WorldOptions options = options_;
  options.pool_bytes += 14 * (2 * kPageBytes + shm::SlotBytes(spec_, 0));
  // A guarantee to others keeps the job from having that room itself.
  options.loop.quotas = {{JobAccount(spec_.name), {.limit = options_.pool_bytes}}};
  ServeWorld world(options);
  SmallTrainer trainer(&world, spec_);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  trainer.FetchAll();
  ASSERT_TRUE(world.SetQuota(spec_.name, {.limit = options.pool_bytes}).ok());
  world.disk().Arm(nvme::DiskFault::kWriteError, 1);
  ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = 1}).error, 0u);
  trainer.FetchAll();
  const JobStates& states = *world.tables().jobs[0]->states;
  EXPECT_EQ(states.fallback_slots().all().size(), 7u);
  EXPECT_TRUE(states.window().any());
  world.Restart();
  ASSERT_TRUE(world.recovered().ok()) << world.recovered().Line();
  for (const auto& rank : trainer.ranks()) ASSERT_TRUE(world.Resume(rank.get(), spec_));
  Weights expected = OnHost(spec_, 1);
  expected.erase(expected.begin(), expected.end() - 7);
  EXPECT_EQ(Difference(trainer.FetchAll(), expected), "");
}

// --- what it takes ---

TEST(WeightPlacement, LeavesAsManyWeightsOnTheHostAsFindRoomBehindTheLargestWindow) {
  const shm::JobSpec spec = SpecOf({.chunks = 12});
  const uint64_t all = shm::HostStateBytesOf(spec, 0).total(), slot = shm::WeightSlotBytes(spec, 0);
  const auto placed = [&](uint64_t bytes) {
    return PlaceStates(spec, StatesOn::kAuto, {bytes, {kGiB}})->weights;
  };
  EXPECT_EQ(placed(all), shm::WeightSpill());
  EXPECT_EQ(placed(all - 1), (shm::WeightSpill{.first = 3, .areas = 4}))
      << "eleven slots: eight of the window, three planes";
  EXPECT_EQ(placed(all - 4 * slot), (shm::WeightSpill{.first = 0, .areas = 4}));
  EXPECT_EQ(placed(all - 4 * slot - 1), (shm::WeightSpill{.first = 1, .areas = 3}));
  EXPECT_EQ(placed(all - 10 * slot), (shm::WeightSpill{.first = 0, .areas = 1}));
  EXPECT_EQ(placed(0), (shm::WeightSpill{.first = 0, .areas = 1})) << "the least that it asks for";
  EXPECT_EQ(shm::LeastHostBytesOf(spec), all - 10 * slot);
  for (uint64_t bytes = all - 10 * slot; bytes < all; bytes += slot / 2) {
    EXPECT_LE(PlaceStates(spec, StatesOn::kAuto, {bytes, {kGiB}})->host_bytes, bytes);
  }
}

TEST(WeightPlacement, IsNotForJobsThatWouldGainNothing) {
  EXPECT_EQ(shm::WeightsSpilledFor(SpecOf({.chunks = 2}), 0, 0), shm::WeightSpill())
      << "a window of two slots is as large";
  EXPECT_EQ(shm::WeightsSpilledFor(SpecOf({.dtype = DType::kF32, .chunks = 9}), 0, 0),
            shm::WeightSpill());
  EXPECT_FALSE(PlaceStates(SpecOf({}), StatesOn::kHost, {0, {kGiB}})->weights.any());
}

TEST(WeightPlacement, TheSmallestPoolIsEnoughAndOnePageLessIsRefusedWithItsNumbers) {
  const shm::JobSpec spec = SpecOf({});
  WorldOptions options = Small(spec);
  {
    ServeWorld world(options);
    SmallTrainer trainer(&world, spec);
    ASSERT_TRUE(trainer.JoinAll());
    EXPECT_EQ(world.pool().free_bytes(), 0u) << "to the byte";
  }
  options.pool_bytes -= kPageBytes;
  ServeWorld world(options);
  SmallTrainer trainer(&world, spec);
  EXPECT_FALSE(trainer.JoinAll());
  const auto refused = world.TakeReply<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->why.id(), ErrorId::kPoolFull);
  EXPECT_NE(refused->why.what().find("(" + std::to_string(shm::LeastHostBytesOf(spec)) + " bytes)"),
            std::string::npos)
      << refused->why.what();
}

}  // namespace weights_test
}  // namespace tidepool::memserver

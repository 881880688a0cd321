// A drive that does not take states: they stay in the pool, the job goes on with the same bits,
// also over the end of a server; where the pool has no room the job waits, and nothing is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/point.h"
#include "base/unique_fd.h"
#include "memserver/traffic/spill_reader.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace unwritten_test {

using nvme::DiskFault;
using Weights = std::vector<std::vector<float>>;

constexpr uint32_t kChunks = 4;

shm::JobSpec Spec(const std::string& name = "gpt", DType dtype = DType::kBF16,
                  uint64_t elements = 4096, uint32_t chunks = kChunks) {
  return MakeSpec({.name = name,
                   .dtype = dtype,
                   .chunks = chunks,
                   .chunk_elements = elements,
                   .rcache_bytes = 8 * kMiB});
}

// A pool that has room for `pieces` pieces of the first chunk beside the job.
WorldOptions OnNvme(const shm::JobSpec& spec, uint64_t pieces) {
  WorldOptions options = WithStatesOnNvme(spec);
  options.pool_bytes =
      shm::HostStateBytesOf(spec, 0).total() + pieces * (kPageBytes + shm::PieceOffset(spec, 0, 1));
  if (spec.chunks[0].elements < shm::kPieceElements) {
    options.pool_bytes =
        shm::HostStateBytesOf(spec, 0).total() + pieces * (kPageBytes + shm::SlotBytes(spec, 0));
  }
  options.loop.times.lease_ns = 5 * kNsPerSecond;
  return options;
}

class Trained {
 public:
  Trained(const shm::JobSpec& spec, const WorldOptions& options)
      : world(options), trainer(&world, spec) {}

  void Join() { ASSERT_TRUE(trainer.JoinAll()); }
  void Start() {
    Join();
    trainer.PutWeights(7);
    world.Settle();
  }
  void Step() { ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = ++seed}).error, 0u); }
  void Kill() {
    world.Restart();
    ASSERT_TRUE(world.recovered().ok()) << world.recovered().Line();
    for (const auto& rank : trainer.ranks()) ASSERT_TRUE(world.Resume(rank.get(), trainer.spec()));
  }
  void PassSeconds(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      world.clock().Advance(kNsPerSecond);
      world.Settle();
    }
  }
  NvmeRow Nvme() {
    world.Post(SnapshotWanted{});
    world.loop().Turn();
    const auto ready = world.TakeReply<SnapshotReady>();
    EXPECT_TRUE(ready.has_value());
    return ready ? ready->snapshot->nvme : NvmeRow{};
  }
  uint64_t InPool() { return world.tables().jobs[0]->states->fallback_slots().all().size(); }
  void End() {
    trainer.LeaveAll();
    world.Settle();
    EXPECT_EQ(world.pool().free_bytes(), world.pool().total_bytes());
    EXPECT_EQ(world.tier().used_bytes(), 0u);
    EXPECT_EQ(world.tier().staging_free(), StateTier::kStagingSlots);
  }

  ServeWorld world;
  SmallTrainer trainer;
  uint64_t seed = 0;
};

Weights OnHost(const shm::JobSpec& spec, uint32_t steps) {
  WorldOptions options;
  options.pool_bytes = 32 * kMiB;
  Trained host(spec, options);
  host.Start();
  for (uint32_t i = 0; i < steps; ++i) host.Step();
  return host.trainer.FetchAll();
}

TEST(Unwritten, ADriveThatTakesNothingMoreLeavesTheStatesInThePoolAndTheBitsAreTheSame) {
  for (const auto fault : {DiskFault::kNoSpace, DiskFault::kWriteError}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const shm::JobSpec spec = Spec("gpt", dtype);
      Trained run(spec, OnNvme(spec, 2 * kChunks));
      run.Start();
      run.Step();
      run.world.disk().Arm(fault, 1);
      for (int i = 0; i < 4; ++i) run.Step();
      EXPECT_EQ(run.trainer.FetchAll(), OnHost(spec, 5));
      EXPECT_EQ(run.InPool(), 2 * kChunks) << "both slots of each";
      run.world.disk().Arm(fault, 0);
      run.End();
    }
  }
}

TEST(Unwritten, ItIsNamedByJobChunkPlaceAndErrorAndCountedOnce) {
  const shm::JobSpec spec = Spec();
  Trained run(spec, OnNvme(spec, 2 * kChunks));
  run.Start();
  run.world.disk().Arm(DiskFault::kNoSpace, 1);
  run.Step();
  run.trainer.FetchAll();
  const NvmeRow row = run.Nvme();
  EXPECT_EQ(row.writes_failed, kChunks);
  EXPECT_EQ(row.pieces_in_pool, kChunks);
  EXPECT_EQ(row.pieces_waiting, 0u);
  EXPECT_EQ(row.bytes_in_pool, kChunks * (kPageBytes + shm::SlotBytes(spec, 0)));
  ASSERT_EQ(row.unwritten.size(), kChunks);
  for (const UnwrittenRow& piece : row.unwritten) {
    EXPECT_EQ(piece.name, "gpt");
    EXPECT_EQ(piece.error, ENOSPC);
    EXPECT_EQ(piece.directory, "simulated0");
    EXPECT_EQ(piece.offset, piece.chunk * shm::SpilledChunkBytes(spec, 0) + shm::SlotBytes(spec, 0))
        << "slot 1 has epoch 1";
    EXPECT_TRUE(piece.in_pool);
  }
}

TEST(Unwritten, AlsoTheFirstStatesAndChunksOfSeveralPieces) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const shm::JobSpec spec = Spec("gpt", dtype, shm::kPieceElements + 8192, 1);
    Trained run(spec, OnNvme(spec, 4));
    run.Join();
    run.world.disk().Arm(DiskFault::kWriteError, 1);
    run.trainer.PutWeights(7);
    for (int i = 0; i < 2; ++i) run.Step();
    EXPECT_EQ(run.trainer.FetchAll(), OnHost(spec, 2));
    EXPECT_EQ(run.InPool(), 4u) << "two pieces, two slots";
  }
}

// Some places fail and some do not, and the drive gets well in between: each piece is read where it
// was written last.
TEST(Unwritten, PlacesThatFailNowAndThenMixWithThoseOnTheDrive) {
  const shm::JobSpec spec = Spec();
  const Weights expected = OnHost(spec, 12);
  uint64_t kept = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    WorldOptions options = OnNvme(spec, 2 * kChunks);
    options.nvme_seed = seed;
    Trained run(spec, options);
    run.Join();
    run.trainer.PutWeights(7);
    for (int i = 0; i < 12; ++i) {
      run.world.disk().Arm(DiskFault::kWriteError, i % 3 == 0 ? 0 : 2);
      run.Step();
      if (i % 4 == 3) run.Kill();
    }
    EXPECT_EQ(run.trainer.FetchAll(), expected) << seed;
    kept += run.InPool();
  }
  EXPECT_GT(kept, 4u);
}

// The server is killed at any turn while the drive refuses all, and again.
TEST(Unwritten, KillsBetweenAnyTwoTurnsLoseNothing) {
  const shm::JobSpec spec = Spec();
  const Weights expected = OnHost(spec, 3);
#ifdef TIDEPOOL_SANITIZED
  constexpr uint32_t kStride = 7;
#else
  constexpr uint32_t kStride = 1;
#endif
  for (uint32_t turns = 0; turns < 40; turns += kStride) {
    Trained run(spec, OnNvme(spec, 2 * kChunks));
    run.world.disk().Pace(2);
    run.Start();
    run.world.disk().Arm(DiskFault::kWriteError, 1);
    for (int step = 0; step < 3; ++step) {
      run.Step();
      for (uint32_t i = 0; i < turns; ++i) {
        if (!run.world.loop().Turn()) run.world.AwaitRetry();
      }
      run.Kill();
    }
    ASSERT_EQ(run.trainer.FetchAll(), expected) << turns;
    EXPECT_EQ(run.InPool(), 2 * kChunks);
    run.world.disk().Arm(DiskFault::kWriteError, 0);
    run.End();
  }
}

// Killed when the piece lies in the pool and nothing names it yet.
TEST(Unwritten, AKillBeforeItIsNamedGoesBackToTheSlotBefore) {
  struct Killed {};
  const shm::JobSpec spec = Spec();
  Trained run(spec, OnNvme(spec, 2 * kChunks));
  run.Start();
  run.world.disk().Arm(DiskFault::kNoSpace, 1);
  uint32_t hits = 0;
  SetPointHook([&hits](const char* point) {
    if (std::strcmp(point, "server.fallback_slot_written") == 0 && ++hits == 2) throw Killed();
  });
  run.trainer.Submit({.learning_rate = 0.05F, .seed = ++run.seed});
  run.trainer.rank(0).EndStep(0, 0.05F);
  EXPECT_THROW(run.world.Settle(), Killed);
  SetPointHook({});
  run.Kill();
  EXPECT_EQ(run.InPool(), 1u);
  run.world.Settle();
  while (run.trainer.rank(0).Take()) {
  }
  run.trainer.set_version(1);
  EXPECT_EQ(run.InPool(), kChunks);
  EXPECT_EQ(run.trainer.FetchAll(), OnHost(spec, 1));
}

TEST(Unwritten, WithoutRoomInThePoolTheJobWaitsAndGoesOnWhenTheDriveIsWell) {
  const shm::JobSpec spec = Spec();
  Trained run(spec, OnNvme(spec, 1));
  run.Start();
  run.world.disk().Arm(DiskFault::kNoSpace, 1);
  run.Step();  // sealed: its states are updated behind the answer
  run.PassSeconds(5);
  EXPECT_EQ(run.InPool(), 1u);
  NvmeRow row = run.Nvme();
  EXPECT_EQ(row.pieces_waiting, kChunks - 1);
  EXPECT_FALSE(row.unwritten.back().in_pool);
  EXPECT_FALSE(run.world.TakeReply<SessionOver>().has_value()) << "nobody is sent away";
  EXPECT_EQ(run.world.tier().staging_free(), StateTier::kStagingSlots)
      << "what waits holds no staging";
  run.Kill();
  run.PassSeconds(2);
  run.world.disk().Arm(DiskFault::kNoSpace, 0);
  run.PassSeconds(2);
  EXPECT_EQ(run.Nvme().pieces_waiting, 0u);
  run.Step();
  EXPECT_EQ(run.trainer.FetchAll(), OnHost(spec, 2));
  run.End();
}

TEST(Unwritten, WithoutRoomItGoesOnAlsoWhenAnotherJobHasGivenThePoolRoom) {
  const shm::JobSpec spec = Spec(), other = Spec("other", DType::kBF16, 5 * 4096);
  WorldOptions options = OnNvme(spec, 0);
  options.pool_bytes += shm::HostStateBytesOf(other, 0).total();
  options.nvme_bytes += shm::NvmeBytesOf(other, 0);
  Trained run(spec, options);
  SmallTrainer second(&run.world, other);
  run.Start();
  ASSERT_TRUE(second.JoinAll());
  second.PutWeights(3);
  run.world.Settle();
  run.world.disk().Arm(DiskFault::kNoSpace, 1);
  run.Step();
  run.PassSeconds(2);
  EXPECT_EQ(run.Nvme().pieces_waiting, kChunks);
  run.world.disk().Arm(DiskFault::kNoSpace, 0);
  EXPECT_EQ(second.Step({.learning_rate = 0.05F, .seed = 1}).error, 0u)
      << "the other one goes on meanwhile";
  run.world.Settle();
  run.world.disk().Arm(DiskFault::kNoSpace, 1);
  run.PassSeconds(2);
  EXPECT_EQ(run.Nvme().pieces_waiting, kChunks);
  run.world.disk().Arm(DiskFault::kNoSpace, 0);
  second.LeaveAll();
  run.world.Settle();
  run.world.disk().Arm(DiskFault::kNoSpace, 1);
  run.PassSeconds(2);
  EXPECT_EQ(run.InPool(), kChunks);
  EXPECT_EQ(run.trainer.FetchAll(), OnHost(spec, 1));
}

TEST(Unwritten, TheLimitOfAnAccountHoldsForIt) {
  const shm::JobSpec spec = Spec();
  Trained run(spec, OnNvme(spec, 2 * kChunks));
  run.Start();
  ASSERT_TRUE(run.world.SetQuota("gpt", {.limit = shm::HostStateBytesOf(spec, 0).total()}).ok());
  run.world.disk().Arm(DiskFault::kNoSpace, 1);
  run.Step();
  run.PassSeconds(2);
  EXPECT_EQ(run.InPool(), 0u);
  ASSERT_TRUE(run.world.SetQuota("gpt", {.limit = kNoLimit}).ok());
  run.PassSeconds(2);
  EXPECT_EQ(run.InPool(), kChunks);
  EXPECT_EQ(run.trainer.FetchAll(), OnHost(spec, 1));
}

TEST(Unwritten, AScrubChecksItAndASaveReadsIt) {
  const shm::JobSpec spec = Spec();
  Trained run(spec, OnNvme(spec, 2 * kChunks));
  run.Start();
  run.world.disk().Arm(DiskFault::kNoSpace, 1);
  run.Step();
  run.trainer.FetchAll();
  ASSERT_TRUE(run.world.Scrub().ok());
  run.world.Settle();
  const ScrubRow scrub = run.Nvme().scrub;
  EXPECT_EQ(scrub.pieces_checked, kChunks);
  EXPECT_EQ(scrub.damaged, 0u);
  const JobStates& states = *run.world.tables().jobs[0]->states;
  SpillReader reader(states, {{-1, run.world.tier().store_nonce(0)}});
  ServeWorld host;
  SmallTrainer on_host(&host, spec);
  ASSERT_TRUE(on_host.JoinAll());
  on_host.PutWeights(7);
  on_host.Step({.learning_rate = 0.05F, .seed = 1});
  on_host.FetchAll();
  std::vector<float> values(4096);
  ASSERT_TRUE(reader.Read(1, 0, values).ok());
  EXPECT_EQ(std::memcmp(values.data(), host.tables().jobs[0]->states->chunk(1).planes.master,
                        values.size() * sizeof(float)),
            0);
  // A bit of it flips in the pool: that is found as on the drive.
  states.fallback_slots().all()[0].image()[kPageBytes + 9] ^= std::byte{2};
  ASSERT_TRUE(run.world.Scrub().ok());
  run.world.Settle();
  EXPECT_EQ(run.Nvme().scrub.damaged, 1u);
}

TEST(Unwritten, ARecordThatDoesNotFitGivesTheJobUp) {
  const shm::JobSpec spec = Spec();
  for (int damage = 0; damage < 4; ++damage) {
    Trained run(spec, OnNvme(spec, 2 * kChunks));
    run.Start();
    run.world.disk().Arm(DiskFault::kNoSpace, 1);
    run.Step();
    run.trainer.FetchAll();
    const JobStates& states = *run.world.tables().jobs[0]->states;
    auto* record =
        reinterpret_cast<FallbackSlotRecord*>(states.fallback_slots().all()[0].extent.data);
    std::atomic<uint64_t>& head = states.chunk(record->chunk).record->fallback_slots;
    if (damage == 0) record->piece ^= 1;
    if (damage == 1) head = 77;
    if (damage == 2) head = head + run.world.pool().total_bytes();
    if (damage == 3) {  // a circle
      record->next = head;
      record->crc = CrcOf(*record);
    }
    run.world.Restart();
    EXPECT_TRUE(run.world.tables().jobs.empty()) << damage;
    EXPECT_EQ(run.world.pool().free_bytes(), run.world.pool().total_bytes()) << damage;
  }
}

}  // namespace unwritten_test
}  // namespace tidepool::memserver

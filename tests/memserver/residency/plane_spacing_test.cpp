// Large planes of one chunk do not lie a large power of two apart, the space for that is counted,
// and layouts without it can be read.
#include "memserver/residency/pool/plane_spacing.h"

#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/formats/plane_slack.h"
#include "base/random.h"
#include "memserver/residency/job_states.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {
namespace plane_spacing_test {

constexpr uint64_t kLargeElements = 64 * kMiB;  // fp32 planes of 256 MiB

bool LieApart(uint64_t a, uint64_t b) {
  const uint64_t distance = (a - b) % kApartModulus;
  return distance >= kApartBytes && distance <= kApartModulus - kApartBytes;
}

TEST(PlaneSpacing, AnyFourOtherPlanesLeaveAStartThatIsApart) {
  SplitMix64 random(3);
  for (int round = 0; round < 20'000; ++round) {
    const uint64_t begin = random.Below(1 << 20) * kPageBytes;
    std::array<uint64_t, 4> others{};
    // Near the plane, or near a multiple of the modulus from it, is in the way.
    for (uint64_t& other : others) {
      other = begin + random.Below(40) * kPageBytes + random.Below(5) * kApartModulus;
    }
    const uint64_t shift = ShiftApart(begin, kPlaneSlackBytes, others);
    ASSERT_LE(shift, kPlaneSlackBytes);
    ASSERT_EQ(shift % kPageBytes, 0U);
    for (const uint64_t other : others)
      ASSERT_TRUE(LieApart(begin + shift, other)) << begin << " " << other;
  }
  EXPECT_EQ(ShiftApart(kGiB, kPlaneSlackBytes, {}), 0U);
}

// Runs that begin a large power of two behind each other, as in a pool with gaps.
TEST(PlaneSpacing, MovesAPlaneInItsRunAwayFromTheOthersOfItsChunk) {
  PlaneSpacing spacing;
  std::vector<uint64_t> starts;
  uint64_t empty = 0;
  for (uint64_t i = 0; i < 5; ++i) {
    const uint64_t begin = kGiB + i * 4 * kApartModulus;
    const Extent run{reinterpret_cast<std::byte*>(begin), kLargePlaneBytes + kPlaneSlackBytes,
                     begin};
    const Extent plane = spacing.Place(run, kPlaneSlackBytes);
    EXPECT_EQ(plane.bytes, kLargePlaneBytes);
    EXPECT_EQ(plane.offset - run.offset, static_cast<uint64_t>(plane.data - run.data));
    EXPECT_LE(plane.offset - run.offset, kPlaneSlackBytes);
    for (const uint64_t other : starts) EXPECT_TRUE(LieApart(plane.offset, other)) << i;
    starts.push_back(plane.offset);
  }
  for (const Extent& pages : spacing.empty_pages()) empty += pages.bytes;
  EXPECT_EQ(empty, 5 * kPlaneSlackBytes);
  spacing.NextChunk();
  const Extent run{reinterpret_cast<std::byte*>(kGiB), kLargePlaneBytes + kPlaneSlackBytes, kGiB};
  EXPECT_EQ(spacing.Place(run, kPlaneSlackBytes).offset, kGiB) << "another chunk";
}

TEST(PlaneSpacing, OnlyLargePlanesTakeMoreThanTheirPages) {
  EXPECT_EQ(PooledBytes(0), 0U);
  EXPECT_EQ(PooledBytes(1), kPageBytes);
  EXPECT_EQ(PooledBytes(kLargePlaneBytes - kPageBytes), kLargePlaneBytes - kPageBytes);
  EXPECT_EQ(PooledBytes(kLargePlaneBytes - 1), kLargePlaneBytes + kPlaneSlackBytes);
  EXPECT_EQ(PooledBytes(kLargePlaneBytes), kLargePlaneBytes + kPlaneSlackBytes);
}

// A pool of memory that nobody touches: its pages do not exist.
class LargeChunks : public ::testing::Test {
 protected:
  void SetUp() override {
    spec_ = std::make_shared<shm::JobSpec>(
        MakeSpec({.dtype = DType::kBF16, .chunks = 2, .chunk_elements = kLargeElements}));
    bytes_ = shm::StateBytesOf(*spec_).total();
    file_ = CreatePoolFile(false);
    ASSERT_TRUE(file_.valid());
    ASSERT_EQ(ftruncate(file_.get(), static_cast<off_t>(bytes_ + kPageBytes)), 0);
    ASSERT_EQ(fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  }

  // Opens the pool as the next server does.
  std::unique_ptr<HostPool> OpenPool() const {
    std::vector<UniqueFd> files;
    files.emplace_back(fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
    auto pool = HostPool::Adopt(
        std::move(files), {.bytes = bytes_, .own_bytes = kPageBytes, .piece_bytes = 64 * kGiB});
    EXPECT_TRUE(pool.ok()) << pool.status().Format();
    return std::move(pool).value();
  }

  static std::vector<uint64_t> PlanesOf(const Chunk& chunk) {
    std::vector<uint64_t> planes;
    for (const std::byte* plane :
         {chunk.planes.master, chunk.planes.momentum, chunk.planes.variance, chunk.planes.param16,
          chunk.planes.gradient}) {
      planes.push_back(reinterpret_cast<uintptr_t>(plane));
    }
    return planes;
  }

  static void ExpectApart(const JobStates& states) {
    for (ChunkId id = 0; id < 2; ++id) {
      const std::vector<uint64_t> planes = PlanesOf(states.chunk(id));
      for (size_t i = 0; i < planes.size(); ++i) {
        for (size_t j = 0; j < i; ++j)
          EXPECT_TRUE(LieApart(planes[i], planes[j]))
              << "planes " << i << " and " << j << " of chunk " << id;
      }
    }
  }

  // The kept records of a job that was just made, as the next server reads them, and where its
  // extents lie.
  KeptJob Make(std::vector<Extent>* extents) {
    const auto pool = OpenPool();
    auto states = JobStates::Create(spec_, pool.get());
    EXPECT_TRUE(states.ok()) << states.status().Format();
    EXPECT_EQ((*states)->pool_bytes(), bytes_);
    EXPECT_EQ(pool->free_bytes(), 0U) << "the job has what was counted for it, to the byte";
    ExpectApart(**states);
    (*states)->WriteFirstRecords({1, 7, 42, 1000});
    extents->assign((*states)->extents().begin(), (*states)->extents().end());
    const Extent& records = extents->front();
    auto kept = ReadJobRecords(std::span<const std::byte>(records.data, records.bytes),
                               {.slot = 0,
                                .job = 1,
                                .nonce = 7,
                                .records_offset = records.offset,
                                .records_bytes = records.bytes});
    EXPECT_TRUE(kept.ok()) << kept.status().Format();
    states->reset();
    EXPECT_EQ(pool->free_bytes(), bytes_) << "all of it goes back";
    return std::move(kept).value();
  }

  std::shared_ptr<const shm::JobSpec> spec_;
  uint64_t bytes_ = 0;
  UniqueFd file_;
};

TEST_F(LargeChunks, TheirPlanesLieApartAndAreFoundAgain) {
  std::vector<Extent> extents;
  const KeptJob kept = Make(&extents);
  const auto pool = OpenPool();
  auto states = JobStates::Recover(kept, pool.get());
  ASSERT_TRUE(states.ok()) << states.status().Format();
  ExpectApart(**states);
  for (size_t i = 0; i < extents.size(); ++i)
    EXPECT_EQ((*states)->extents()[i].offset, extents[i].offset);
  EXPECT_EQ((*states)->pool_bytes() + pool->free_bytes(), bytes_)
      << "the empty pages are the pool's again";
}

// Places planes as servers before this rule did.
TEST_F(LargeChunks, PlanesRightBehindEachOtherAreReadToo) {
  std::vector<Extent> extents;
  KeptJob kept = Make(&extents);
  uint64_t next = extents.front().offset;
  for (size_t i = 0; i < extents.size(); ++i) {
    kept.extent_offsets[i] = next;
    next += extents[i].bytes;
  }
  const auto pool = OpenPool();
  auto states = JobStates::Recover(kept, pool.get());
  ASSERT_TRUE(states.ok()) << states.status().Format();
  EXPECT_EQ((*states)->chunk(0).planes.momentum - (*states)->chunk(0).planes.master,
            std::ptrdiff_t{256 * kMiB});
  EXPECT_EQ((*states)->pool_bytes() + pool->free_bytes(), bytes_);
}

TEST_F(LargeChunks, ARunThatTheSlackDoesNotFitIntoIsNoRoom) {
  const auto pool = OpenPool();
  std::vector<Extent> taken;
  ASSERT_TRUE(pool->Take(std::array{kPageBytes}, &taken));
  EXPECT_FALSE(JobStates::FindsRuns(spec_, pool.get(), {}, {}));
  EXPECT_FALSE(JobStates::Create(spec_, pool.get()).ok());
  EXPECT_EQ(pool->free_bytes(), bytes_ - kPageBytes);
  EXPECT_TRUE(JobStates::FindsRuns(spec_, pool.get(), {}, taken));
}

TEST_F(LargeChunks, WhatMovesOutGivesItsSlackBack) {
  const auto pool = OpenPool();
  auto states = JobStates::Create(spec_, pool.get()).value();
  states->WriteFirstRecords({1, 7, 42, 1000});
  for (Chunk& chunk : states->chunks()) states->table().MarkLoaded(&chunk);
  std::vector<Extent> movable;
  states->placement().AddMovable(&movable);
  uint64_t bytes = 0;
  for (const Extent& extent : movable) bytes += extent.bytes;
  EXPECT_EQ(bytes, states->movable_bytes());
  states->MoveOut(PlanMove(*spec_, 2, {64 * kGiB}).value(), {0});
  EXPECT_EQ(pool->free_bytes(), bytes);
  EXPECT_EQ(states->pool_bytes(), bytes_ - bytes);
}

TEST_F(LargeChunks, SpilledOnesHaveNoSlack) {
  const shm::StateBytes all = shm::HostStateBytesOf(*spec_, shm::kNoSpill),
                        one = shm::HostStateBytesOf(*spec_, 1);
  EXPECT_EQ(all.total() - one.total(), 3 * 256 * kMiB + 5 * kPlaneSlackBytes);
  const Placement placed =
      PlaceStates(*spec_, StatesOn::kAuto, {all.total() - 1, {8 * kGiB}}).value();
  EXPECT_EQ(placed.first_spilled, 1U);
  EXPECT_EQ(placed.host_bytes, one.total());
  const auto pool = OpenPool();
  auto states = JobStates::Create(spec_, pool.get(), placed);
  ASSERT_TRUE(states.ok()) << states.status().Format();
  EXPECT_EQ((*states)->pool_bytes(), one.total());
  EXPECT_EQ(pool->free_bytes(), bytes_ - one.total());
}

}  // namespace plane_spacing_test
}  // namespace tidepool::memserver

// What another server leaves, and what the next one makes of it: the index, the records, the ranks
// that come back, requests sent again.
#include "memserver/jobs/job_recovery.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/unique_fd.h"
#include "memserver/residency/kept/job_records.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {
namespace kept_jobs_test {

const WorldOptions kLease{
    .loop = {.times = {.lease_ns = 10 * kNsPerSecond}, .rcache_limit = 64 * kMiB}};

Extent Place(uint64_t offset) {
  return {nullptr, 4096, offset};
}

TEST(KeptIndex, NamesTheJobsThatAreInIt) {
  const PoolGeometry geometry{8192, 4096, 64 * kKiB};
  auto made = KeptIndex::Create(geometry, 5);
  ASSERT_TRUE(made.ok());
  KeptIndex& index = **made;
  const uint32_t first = index.Add(1, index.NonceOf(1), Place(4096));
  index.Add(2, index.NonceOf(2), Place(8192));
  index.Remove(first);
  IndexContents contents;
  auto adopted = KeptIndex::Adopt(Duplicate(index.fd()), &contents);
  ASSERT_TRUE(adopted.ok()) << adopted.status().Format();
  ASSERT_EQ(contents.jobs.size(), 1u);
  EXPECT_EQ(contents.jobs[0].job, 2u);
  EXPECT_EQ(contents.jobs[0].nonce, index.NonceOf(2));
  EXPECT_EQ(contents.jobs[0].records_offset, 8192u);
  EXPECT_EQ(contents.geometry.bytes, geometry.bytes);
  EXPECT_NE(index.NonceOf(1), index.NonceOf(2));
}

std::vector<std::byte> ImageOf(const KeptIndex& index) {
  std::vector<std::byte> image(kIndexBytes);
  EXPECT_EQ(pread(index.fd(), image.data(), image.size(), 0), static_cast<ssize_t>(image.size()));
  return image;
}

TEST(KeptIndex, EverySingleBitOfWhatItTrustsCounts) {
  auto made = KeptIndex::Create({8192, 4096, 64 * kKiB}, 5);
  ASSERT_TRUE(made.ok());
  (*made)->Add(1, 77, Place(4096));
  const std::vector<std::byte> image = ImageOf(**made);
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 48}, {4096, 4096 + 32}}) {
    for (size_t bit = begin * 8; bit < end * 8; ++bit) {
      std::vector<std::byte> bad = image;
      bad[bit / 8] ^= std::byte{1} << bit % 8;
      auto contents = ReadIndex(bad);
      // Each job says of itself which layout it was made in.
      if (contents.ok() && contents->layout == kKeptLayoutMin) continue;
      EXPECT_TRUE(!contents.ok() || contents->jobs.empty()) << "bit " << bit << " was not noticed";
    }
  }
}

TEST(KeptIndex, AnotherLayoutIsRefusedWithBothNumbers) {
  auto made = KeptIndex::Create({8192, 4096, 64 * kKiB}, 5);
  ASSERT_TRUE(made.ok());
  std::vector<std::byte> image = ImageOf(**made);
  const uint32_t other = kKeptLayout + 7;
  std::memcpy(image.data() + 4, &other, sizeof other);
  auto contents = ReadIndex(image);
  EXPECT_EQ(contents.status().id(), ErrorId::kKeptLayoutUnknown);
  EXPECT_NE(contents.status().what().find(std::to_string(other)), std::string::npos);
  EXPECT_NE(contents.status().what().find(std::to_string(kKeptLayout)), std::string::npos);
  EXPECT_NE(contents.status().Format().find("this memserver knows layout "), std::string::npos);
}

TEST(ExtentAllocator, TakesAnExactPlaceOnce) {
  const std::vector<uint64_t> pieces{16 * kPageBytes, 16 * kPageBytes};
  ExtentAllocator allocator(pieces);
  EXPECT_TRUE(allocator.TakeAt(4 * kPageBytes, 2 * kPageBytes));
  EXPECT_FALSE(allocator.TakeAt(5 * kPageBytes, kPageBytes)) << "taken";
  EXPECT_FALSE(allocator.TakeAt(15 * kPageBytes, 2 * kPageBytes))
      << "crosses the border of a piece";
  EXPECT_FALSE(allocator.TakeAt(32 * kPageBytes, kPageBytes)) << "outside";
  EXPECT_FALSE(allocator.TakeAt(100, kPageBytes)) << "not a page";
  EXPECT_FALSE(allocator.TakeAt(6 * kPageBytes, ~uint64_t{0} - kPageBytes + 1))
      << "longer than everything";
  EXPECT_TRUE(allocator.TakeAt(0, 4 * kPageBytes));
  EXPECT_EQ(allocator.free_bytes(), 26 * kPageBytes);
  allocator.Release(4 * kPageBytes, 2 * kPageBytes);
  EXPECT_TRUE(allocator.TakeAt(4 * kPageBytes, kPageBytes));
}

class KeptJobs : public ::testing::Test {
 protected:
  // Weights of one rank: element i of chunk c is c + i.
  std::unique_ptr<FakeRank> JoinAndLoad(ServeWorld* world) {
    auto rank = world->Join(spec_, 0);
    world->TakeReply<Attached>();
    for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) {
      for (uint64_t i = 0; i < kElements; ++i)
        rank->At<float>(0)[i] = static_cast<float>(chunk + i);
      EXPECT_EQ(world->Await(rank.get(), rank->Put(chunk, 0, kElements, 0)).error, 0u);
    }
    return rank;
  }
  uint64_t SubmitOnes(FakeRank* rank, ChunkId chunk, Version version, uint32_t flags = 0) {
    for (uint64_t i = 0; i < kElements; ++i) rank->At<float>(4096)[i] = 1;
    shm::Request request{};
    request.op = static_cast<uint32_t>(shm::Op::kSubmitGradient);
    request.chunk = chunk;
    request.element_count = kElements;
    request.rcache_offset = 4096;
    request.version = version;
    request.flags = flags;
    return rank->Send(request);
  }
  uint64_t EndAgain(FakeRank* rank, Version version) {
    shm::EndStepRequest request{};
    request.op = static_cast<uint32_t>(shm::Op::kEndStep);
    request.version = version;
    request.learning_rate = 0.1F;
    request.loss_scale = 1;
    request.flags = shm::kResubmitted;
    return rank->Send(shm::AsRequest(request));
  }
  static constexpr uint64_t kElements = 192;
  const shm::JobSpec spec_ = MakeSpec({});
  ServeWorld world_{kLease};
};

TEST_F(KeptJobs, WeightsAreWhereTheyWereAndTheRankGoesOn) {
  auto rank = JoinAndLoad(&world_);
  const uint64_t free_before = world_.pool().free_bytes();
  world_.Restart();
  EXPECT_EQ(world_.pool().free_bytes(), free_before);
  ASSERT_EQ(world_.tables().jobs.size(), 1u);
  ASSERT_TRUE(world_.Resume(rank.get(), spec_));
  std::memset(rank->At<float>(0), 0, kElements * sizeof(float));
  EXPECT_EQ(world_.Await(rank.get(), rank->Fetch(1, 0, kElements, 0, 0)).error, 0u);
  EXPECT_EQ(rank->At<float>(0)[10], 11.0F);
}

TEST_F(KeptJobs, HalfLoadedWeightsNeedNotBePutAgain) {
  auto rank = world_.Join(spec_, 0);
  world_.TakeReply<Attached>();
  world_.Await(rank.get(), rank->Put(0, 0, 64, 0));
  world_.Restart();
  ASSERT_TRUE(world_.Resume(rank.get(), spec_));
  shm::Request again{};
  again.op = static_cast<uint32_t>(shm::Op::kPutWeights);
  again.element_count = 64;
  again.flags = shm::kResubmitted;
  EXPECT_EQ(world_.Await(rank.get(), rank->Send(again)).error, 0u) << "it is there already";
  EXPECT_EQ(world_.Await(rank.get(), rank->Put(0, 64, kElements - 64, 0)).error, 0u);
  EXPECT_EQ(world_.Await(rank.get(), rank->Put(1, 0, kElements, 0)).error, 0u);
  EXPECT_TRUE(world_.tables().jobs[0]->states->weights_ready());
}

TEST_F(KeptJobs, ARequestSentAgainTakesEffectOnce) {
  auto rank = JoinAndLoad(&world_);
  world_.Await(rank.get(), SubmitOnes(rank.get(), 0, 0));
  world_.Restart();
  ASSERT_TRUE(world_.Resume(rank.get(), spec_));
  EXPECT_EQ(world_.Await(rank.get(), SubmitOnes(rank.get(), 0, 0, shm::kResubmitted)).error, 0u);
  EXPECT_EQ(world_.tables().jobs[0]->states->intake(0, 0).micro_batches_stored, 1u);
  EXPECT_EQ(world_.Await(rank.get(), SubmitOnes(rank.get(), 1, 0)).error, 0u);
  const shm::Completion sealed = world_.Await(rank.get(), rank->EndStep(0, 0.1F));
  EXPECT_EQ(sealed.version, 1u);
  world_.Restart();
  ASSERT_TRUE(world_.Resume(rank.get(), spec_));
  const shm::Completion again = world_.Await(rank.get(), EndAgain(rank.get(), 0));
  EXPECT_EQ(again.error, 0u);
  EXPECT_EQ(again.version, 1u);
  EXPECT_EQ(again.grad_norm, sealed.grad_norm) << "from the step record";
  EXPECT_EQ(world_.tables().jobs[0]->states->sealed_version(), 1u);
}

TEST_F(KeptJobs, ASealedStepIsFinishedWithoutAnyRank) {
  auto rank = JoinAndLoad(&world_);
  for (ChunkId chunk = 0; chunk < 2; ++chunk)
    world_.Await(rank.get(), SubmitOnes(rank.get(), chunk, 0));
  rank->EndStep(0, 0.1F);
  while (world_.tables().jobs[0]->states->sealed_version() == 0) world_.loop().Turn();
  world_.Restart();
  world_.Settle();
  for (const Chunk& chunk : world_.tables().jobs[0]->states->chunks()) EXPECT_EQ(chunk.version, 1u);
}

// The failure sweep found it: a descriptor that was missing for a moment ended the run of a rank
// that was coming back.
TEST_F(KeptJobs, ARankForWhichTheNextServerLacksSomethingIsAwaitedOn) {
  auto rank = JoinAndLoad(&world_);
  world_.Restart();
  for (int tries = 0; tries < 3; ++tries) {
    const ConnectionId connection = world_.AskToResume(*rank, spec_);
    world_.Settle();
    ASSERT_TRUE(world_.TakeReply<ReserveGranted>().has_value());
    world_.TakeAllReplies();
    world_.Post(ConnectionLost{connection, "no memory for its rings", true});
    world_.Settle();
    const auto awaited = world_.TakeReply<AwaitRank>();
    ASSERT_TRUE(awaited.has_value()) << "its process is watched again";
    EXPECT_EQ(awaited->nonce, rank->nonce());
    EXPECT_TRUE(world_.tables().slots.empty());
  }
  ASSERT_TRUE(world_.Resume(rank.get(), spec_));
  EXPECT_EQ(world_.Await(rank.get(), SubmitOnes(rank.get(), 0, 0)).error, 0u);
}

TEST_F(KeptJobs, OnlyTheSameIncarnationOfARankComesBack) {
  auto rank = JoinAndLoad(&world_);
  world_.Restart();
  const uint64_t nonce = rank->nonce();
  EXPECT_FALSE(world_.Resume(rank.get(), spec_, 4711)) << "another user";
  EXPECT_EQ(world_.TakeReply<Refused>()->why.id(), ErrorId::kNotOwner);
  rank->SetNames(nonce + 1, rank->job_nonce());
  EXPECT_FALSE(world_.Resume(rank.get(), spec_));
  EXPECT_EQ(world_.TakeReply<Refused>()->why.id(), ErrorId::kPeerLost);
  rank->SetNames(nonce, rank->job_nonce() + 2);
  EXPECT_FALSE(world_.Resume(rank.get(), spec_));
  EXPECT_EQ(world_.TakeReply<Refused>()->why.id(), ErrorId::kStatesLost);
}

TEST_F(KeptJobs, AStrangerIsToldToWaitUntilTheOldRankIsKnownToBeDead) {
  auto rank = JoinAndLoad(&world_);
  world_.Restart();
  const auto awaited = world_.TakeReply<AwaitRank>();
  ASSERT_TRUE(awaited.has_value());
  EXPECT_EQ(world_.Join(spec_, 0), nullptr);
  EXPECT_EQ(world_.TakeReply<Refused>()->why.id(), ErrorId::kRankTaken);
  world_.Post(AwaitedRankLost{awaited->job, awaited->rank, awaited->nonce});
  world_.loop().Turn();
  const auto heir = world_.Join(spec_, 0);
  ASSERT_NE(heir, nullptr);
  EXPECT_TRUE(world_.TakeReply<Attached>()->weights_ready);
}

TEST_F(KeptJobs, AProcessThatBeginsAnewIsNotKeptWaitingForItself) {
  world_.ComeFrom(77);
  auto rank = JoinAndLoad(&world_);
  world_.Restart();
  ASSERT_TRUE(world_.TakeReply<AwaitRank>().has_value());
  EXPECT_EQ(world_.Join(spec_, 0, 4711), nullptr);
  EXPECT_EQ(world_.TakeReply<Refused>()->why.id(), ErrorId::kNotOwner) << "of another user";
  ASSERT_NE(world_.Join(spec_, 0), nullptr);
  EXPECT_TRUE(world_.TakeReply<Attached>()->weights_ready);
}

TEST_F(KeptJobs, RanksThatStayAwayLoseTheirPlaceWithTheLease) {
  auto rank = JoinAndLoad(&world_);
  world_.Restart();
  world_.clock().Advance(11 * kNsPerSecond);
  world_.Settle();
  world_.clock().Advance(11 * kNsPerSecond);
  world_.Settle();
  EXPECT_TRUE(world_.tables().jobs.empty());
  EXPECT_EQ(world_.pool().free_bytes(), world_.pool().total_bytes());
  world_.Restart();
  EXPECT_TRUE(world_.tables().jobs.empty()) << "it is not in the index any more";
}

TEST_F(KeptJobs, ADamagedJobIsGivenUpAndTheOthersGoOn) {
  auto rank = JoinAndLoad(&world_);
  const shm::JobSpec other = MakeSpec({.name = "other"});
  auto beside = world_.Join(other, 0);
  ASSERT_NE(beside, nullptr);
  Chunk& chunk = world_.tables().jobs[0]->states->chunk(1);
  chunk.record->stamp.store(chunk.record->stamp.load() ^ 1);
  world_.Restart();
  ASSERT_EQ(world_.tables().jobs.size(), 1u);
  EXPECT_EQ(world_.tables().jobs[0]->spec().name, "other");
  EXPECT_FALSE(world_.Resume(rank.get(), spec_));
  EXPECT_EQ(world_.TakeReply<Refused>()->why.id(), ErrorId::kStatesLost);
}

TEST_F(KeptJobs, EveryBitOfAJobsIdentityCounts) {
  auto rank = JoinAndLoad(&world_);
  const Job& job = *world_.tables().jobs[0];
  const Extent records = job.states->extents().front();
  const IndexedJob indexed{job.index_slot, job.id, job.nonce, records.offset, records.bytes};
  const auto read = [&] { return ReadJobRecords({records.data, records.bytes}, indexed); };
  ASSERT_TRUE(read().ok());
  const JobRecord& record = job.states->record();
  const auto* spec_at = records.data + record.spec_at;
  for (const auto& [begin, bytes] : {std::pair<const void*, uint64_t>{&record, 80},
                                     {&record.steps[0], sizeof(StepRecord)},
                                     {spec_at, record.spec_bytes},
                                     {records.data + record.extents_at, record.extent_count * 8}}) {
    auto* at = const_cast<std::byte*>(static_cast<const std::byte*>(begin));
    for (uint64_t bit = 0; bit < bytes * 8; ++bit) {
      at[bit / 8] ^= std::byte{1} << bit % 8;
      const Status bad = read().status();
      EXPECT_EQ(bad.id(), ErrorId::kKeptMemoryBad)
          << "bit " << bit << " at " << (at - records.data);
      EXPECT_TRUE(bad.what().starts_with("job " + std::to_string(job.id))) << bad.Format();
      at[bit / 8] ^= std::byte{1} << bit % 8;
    }
  }
}

TEST_F(KeptJobs, AHandOverFinishesTheWorkInHandAndLeavesTheJobs) {
  auto rank = JoinAndLoad(&world_);
  world_.Post(StopServing{true});
  world_.Settle();
  EXPECT_TRUE(world_.loop().stopped());
  EXPECT_EQ(world_.tables().jobs.size(), 1u);
  EXPECT_FALSE(rank->Ended().has_value()) << "the ranks are not told: they wait";
  world_.Restart();
  EXPECT_TRUE(world_.Resume(rank.get(), spec_));
}

}  // namespace kept_jobs_test
}  // namespace tidepool::memserver

// Where quotas and NVMe meet: a job above what it may have of the pool spills, and what it may have
// on NVMe has a limit of its own.
#include <gtest/gtest.h>

#include <string>

#include "memserver/jobs/rows/snapshot_builder.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace nvme_quota_test {

constexpr uint32_t kCarol = 1010, kDave = 1011;

shm::JobSpec Spec(const std::string& name = "gpt") {
  return MakeSpec({.name = name,
                   .dtype = DType::kBF16,
                   .chunks = 4,
                   .chunk_elements = 4096,
                   .rcache_bytes = 64 * kKiB});
}

uint64_t HostBytes(ChunkId first_spilled = shm::kNoSpill) {
  return shm::HostStateBytesOf(Spec(), first_spilled).total();
}

// A pool for many jobs, and NVMe for `jobs` that spill whole.
WorldOptions NvmeFor(uint32_t jobs, StatesOn states_on = StatesOn::kAuto) {
  WorldOptions options = WithStatesOnNvme(Spec(), jobs);
  options.loop.live.states_on = states_on;
  return options;
}

std::string Exactly(uint64_t bytes) {
  return "(" + std::to_string(bytes) + " bytes)";
}

// Why it was refused at once.
Status Refusal(ServeWorld* world, const shm::JobSpec& spec, uint32_t uid = kCarol) {
  EXPECT_EQ(world->Join(spec, 0, uid), nullptr);
  const auto refused = world->TakeReply<Refused>();
  return refused ? refused->why : Status();
}

std::optional<Queued> Waits(ServeWorld* world, const shm::JobSpec& spec, uint32_t uid = kCarol) {
  world->MayWait(true);
  world->Reserve(spec, 0, uid);
  world->MayWait(false);
  world->Settle();
  return world->TakeReply<Queued>();
}

TEST(NvmeQuota, AJobAboveItsQuotaOfThePoolSpillsInsteadOfBeingRefused) {
  WorldOptions options = NvmeFor(1);
  options.loop.quotas = {{"job:gpt", {.limit = HostBytes(2) + kPageBytes}}};
  ServeWorld world(options);
  SmallTrainer trainer(&world, Spec());
  ASSERT_TRUE(trainer.JoinAll());
  const JobStates& states = *world.tables().jobs[0]->states;
  EXPECT_EQ(states.pool_bytes(), HostBytes(2)) << "as little as the quota asks for";
  EXPECT_EQ(states.nvme_total(), shm::NvmeBytesOf(Spec(), 2));
  trainer.PutWeights(1);
  EXPECT_EQ(trainer.Step({.learning_rate = 0.1F, .seed = 1}).error, 0u);
  EXPECT_NE(world.Join(Spec("other"), 0, kDave), nullptr)
      << "others have no such quota: the pool takes them";
}

TEST(NvmeQuota, AJobThatMaySpillOnlyALittleIsRefusedByTheQuotaOfThePool) {
  WorldOptions options = NvmeFor(1);
  const uint64_t least = shm::LeastHostBytesOf(Spec());
  options.loop.quotas = {{"job:gpt", {.limit = least - kPageBytes}}};
  ServeWorld world(options);
  const Status refused = Refusal(&world, Spec());
  EXPECT_EQ(refused.id(), ErrorId::kQuotaExceeded);
  EXPECT_NE(refused.what().find(Exactly(least)), std::string::npos)
      << "what it needs with all spilled: " << refused.what();
  EXPECT_NE(refused.what().find(Exactly(least - kPageBytes)), std::string::npos) << refused.what();
  EXPECT_EQ(world.tier().used_bytes(), 0u);
  EXPECT_FALSE(Waits(&world, Spec()).has_value()) << "it could never be admitted";
}

TEST(NvmeQuota, WithStatesOnTheHostTheQuotaOfThePoolRefuses) {
  WorldOptions options = NvmeFor(1, StatesOn::kHost);
  options.loop.quotas = {{UserAccount(kCarol), {.limit = HostBytes() + HostBytes(2)}}};
  ServeWorld world(options);
  ASSERT_NE(world.Join(Spec("first"), 0, kCarol), nullptr);
  const Status refused = Refusal(&world, Spec());
  EXPECT_EQ(refused.id(), ErrorId::kQuotaExceeded);
  EXPECT_NE(refused.what().find(Exactly(HostBytes())), std::string::npos)
      << "all of it: " << refused.what();
  EXPECT_TRUE(Waits(&world, Spec()).has_value()) << "the first may end";
}

TEST(NvmeQuota, AJobWhoseNvmeIsTakenWaitsUntilItIsGivenBack) {
  WorldOptions options = NvmeFor(1, StatesOn::kNvme);
  ServeWorld world(options);
  const auto first = world.Join(Spec("first"), 0, kDave);
  ASSERT_NE(first, nullptr);
  const Status refused = Refusal(&world, Spec());
  EXPECT_EQ(refused.id(), ErrorId::kNvmeFull);
  EXPECT_NE(refused.what().find(FormatBytes(shm::NvmeBytesOf(Spec(), 0))), std::string::npos)
      << refused.what();
  EXPECT_NE(refused.why().find(FormatBytes(world.pool().free_bytes())), std::string::npos)
      << refused.why();
  const auto queued = Waits(&world, Spec());
  ASSERT_TRUE(queued.has_value());
  EXPECT_EQ(queued->why.id(), ErrorId::kNvmeFull);
  world.Leave(*first);
  world.Settle();
  EXPECT_TRUE(world.TakeReply<ReserveGranted>().has_value());
  EXPECT_EQ(world.tier().used_bytes(), shm::NvmeBytesOf(Spec(), 0));
}

TEST(NvmeQuota, TheLimitOnNvmeRefusesOneUserAndHoldsUpNobody) {
  WorldOptions options = NvmeFor(3, StatesOn::kNvme);
  const uint64_t limit = 2 * shm::NvmeBytesOf(Spec(), 0) - kPageBytes;
  options.loop.quotas = {{UserAccount(kCarol), {.nvme_limit = limit}}};
  ServeWorld world(options);
  const auto one = world.Join(Spec("one"), 0, kCarol);
  ASSERT_NE(one, nullptr);
  const auto queued = Waits(&world, Spec("two"));
  ASSERT_TRUE(queued.has_value());
  EXPECT_EQ(queued->why.id(), ErrorId::kQuotaExceeded);
  EXPECT_NE(queued->why.what().find(Exactly(shm::NvmeBytesOf(Spec(), 0))), std::string::npos)
      << queued->why.what();
  EXPECT_NE(queued->why.what().find(Exactly(shm::NvmeBytesOf(Spec(), 0) - kPageBytes)),
            std::string::npos)
      << queued->why.what();
  EXPECT_NE(queued->why.why().find("one holds"), std::string::npos) << queued->why.why();
  EXPECT_NE(world.Join(Spec("bob"), 0, kDave), nullptr) << "she waits for herself alone";
  world.Leave(*one);
  world.Settle();
  EXPECT_TRUE(world.TakeReply<ReserveGranted>().has_value());
}

TEST(NvmeQuota, WhatTheLimitOnNvmeCouldNeverAdmitIsRefusedAtOnce) {
  WorldOptions options = NvmeFor(3, StatesOn::kNvme);
  options.loop.quotas = {
      {UserAccount(kCarol), {.nvme_limit = shm::NvmeBytesOf(Spec(), 0) - kPageBytes}}};
  ServeWorld world(options);
  EXPECT_FALSE(Waits(&world, Spec()).has_value());
  EXPECT_EQ(world.TakeReply<Refused>()->why.id(), ErrorId::kQuotaExceeded);
}

TEST(NvmeQuota, ALimitOfNothingKeepsTheJobsOnTheHost) {
  WorldOptions options = NvmeFor(3, StatesOn::kNvme);
  options.loop.quotas = {{UserAccount(kCarol), {.nvme_limit = 0}}};
  ServeWorld world(options);
  ASSERT_NE(world.Join(Spec(), 0, kCarol), nullptr);
  EXPECT_EQ(world.tables().jobs[0]->states->pool_bytes(), HostBytes());
  EXPECT_EQ(world.tier().used_bytes(), 0u);
}

TEST(NvmeQuota, AnAdminSetsItAndTheAccountsShowIt) {
  WorldOptions options = NvmeFor(1, StatesOn::kNvme);
  ServeWorld world(options);
  ASSERT_NE(world.Join(Spec(), 0, kCarol), nullptr);
  ASSERT_TRUE(world.SetQuota("gpt", {.nvme_limit = kMiB}).ok());
  EXPECT_EQ(world.tables().jobs[0]->account, "job:gpt");
  world.Post(SnapshotWanted{});
  world.Settle();
  const auto ready = world.TakeReply<SnapshotReady>();
  ASSERT_TRUE(ready.has_value());
  ASSERT_EQ(ready->snapshot->accounts.size(), 1u);
  EXPECT_EQ(ready->snapshot->accounts[0].quota.nvme_limit, kMiB);
  EXPECT_EQ(ready->snapshot->accounts[0].nvme_used, shm::NvmeBytesOf(Spec(), 0));
}

}  // namespace nvme_quota_test
}  // namespace tidepool::memserver

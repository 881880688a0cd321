// What admins do to jobs: suspend, resume, release, drain, each in a serve loop in this process.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "base/log.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace job_commands_test {

// A trained job of one rank at version 1.
struct Trained {
  Trained() : world(WithLease()), trainer(&world, MakeSpec({.name = "gpt"})) {
    EXPECT_TRUE(trainer.JoinAll());
    trainer.PutWeights(1);
    trainer.Step({.seed = 1});
    world.Settle();
  }
  bool HasJob() const { return world.tables().FindJob("gpt") != nullptr; }
  ServeWorld world;
  SmallTrainer trainer;
};

TEST(Suspend, ItsRanksWaitAndGoOnWhenItIsResumed) {
  Trained t;
  EXPECT_TRUE(t.world.Command(SuspendJob{"gpt", true}).ok());
  t.trainer.rank(0).Fetch(0, 0, 192, 0, 1);
  t.world.Settle();
  EXPECT_FALSE(t.trainer.rank(0).Take().has_value());
  EXPECT_TRUE(t.world.Command(SuspendJob{"gpt", false}).ok());
  t.world.Settle();
  const auto answer = t.trainer.rank(0).Take();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->error, 0u);
}

TEST(Suspend, HoldsUpNobodyElse) {
  Trained t;
  SmallTrainer other(&t.world, MakeSpec({.name = "other"}));
  ASSERT_TRUE(other.JoinAll());
  EXPECT_TRUE(t.world.Command(SuspendJob{"gpt", true}).ok());
  t.trainer.rank(0).Fetch(0, 0, 192, 0, 1);
  other.PutWeights(1);
  EXPECT_EQ(other.Step({.seed = 1}).error, 0u);
  EXPECT_FALSE(t.trainer.rank(0).Take().has_value());
}

TEST(Suspend, KeepsAJobWithoutRanksBeyondItsLease) {
  Trained t;
  EXPECT_TRUE(t.world.Command(SuspendJob{"gpt", true}).ok());
  t.world.Lose(t.trainer.rank(0));
  t.world.Settle();
  t.world.clock().Advance(10 * kLeaseNs);
  t.world.Settle();
  EXPECT_TRUE(t.HasJob());
  EXPECT_TRUE(t.world.Command(SuspendJob{"gpt", false}).ok());
  t.world.clock().Advance(kLeaseNs - 1);
  t.world.Settle();
  EXPECT_TRUE(t.HasJob()) << "its lease begins when it is resumed";
  t.world.clock().Advance(1);
  t.world.Settle();
  EXPECT_FALSE(t.HasJob());
}

TEST(Release, GivesTheMemoryOfADetachedJobBack) {
  Trained t;
  t.world.Lose(t.trainer.rank(0));
  t.world.Settle();
  ASSERT_TRUE(t.HasJob());
  EXPECT_TRUE(t.world.Command(ReleaseJob{"gpt", false}).ok());
  t.world.Settle();
  EXPECT_FALSE(t.HasJob());
  EXPECT_EQ(t.world.pool().free_bytes(), t.world.pool().total_bytes());
  EXPECT_EQ(t.world.Command(ReleaseJob{"gpt", false}).id(), ErrorId::kAdminNotFound);
}

TEST(Release, EndsRanksByForceOnly) {
  Trained t;
  const Status busy = t.world.Command(ReleaseJob{"gpt", false});
  EXPECT_EQ(busy.id(), ErrorId::kJobBusy);
  EXPECT_NE(busy.why().find("0"), std::string::npos);
  EXPECT_TRUE(t.HasJob());
  EXPECT_TRUE(t.world.Command(ReleaseJob{"gpt", true}).ok());
  t.world.Settle();
  EXPECT_EQ(t.trainer.rank(0).Ended(), ErrorId::kSessionEnded);
  const auto over = t.world.TakeReply<SessionOver>();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->why.id(), ErrorId::kSessionEnded);
  EXPECT_TRUE(t.world.tables().jobs.empty() && t.world.tables().slots.empty());
  EXPECT_EQ(t.world.pool().free_bytes(), t.world.pool().total_bytes());
}

TEST(Release, OfAJobWhoseMemoryIsBeingZeroedWaitsForThat) {
  ServeWorld world;
  world.Reserve(MakeSpec({.name = "gpt"}), 0);
  world.Settle();
  const auto granted = world.TakeReply<ReserveGranted>();
  ASSERT_TRUE(granted && !granted->to_zero.empty());
  EXPECT_TRUE(world.Command(ReleaseJob{"gpt", true}).ok());
  world.Settle();
  EXPECT_TRUE(world.TakeReply<SessionOver>().has_value());
  EXPECT_LT(world.pool().free_bytes(), world.pool().total_bytes())
      << "the control side still writes there";
  world.Post(ConnectionLost{granted->connection, "session over"});
  world.Settle();
  EXPECT_EQ(world.pool().free_bytes(), world.pool().total_bytes());
}

TEST(Release, AlsoOfAJobWhoseRanksAreExpectedBack) {
  Trained t;
  t.world.Restart();
  ASSERT_TRUE(t.HasJob());
  EXPECT_EQ(t.world.Command(ReleaseJob{"gpt", false}).id(), ErrorId::kJobBusy);
  EXPECT_TRUE(t.world.Command(ReleaseJob{"gpt", true}).ok());
  t.world.Settle();
  EXPECT_FALSE(t.world.Resume(&t.trainer.rank(0), t.trainer.spec()));
  const auto refused = t.world.TakeReply<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->why.id(), ErrorId::kStatesLost);
}

TEST(Drain, TakesNoNewJobsAndLetsOthersGoOn) {
  Trained t;
  EXPECT_TRUE(t.world.Command(DrainJobs{true}).ok());
  EXPECT_EQ(t.world.Join(MakeSpec({.name = "new"}), 0), nullptr);
  const auto refused = t.world.TakeReply<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->why.id(), ErrorId::kTooManySessions);
  EXPECT_EQ(t.trainer.Step({.seed = 2}).error, 0u);
  t.world.Lose(t.trainer.rank(0));
  t.world.Settle();
  EXPECT_NE(t.world.Join(t.trainer.spec(), 0), nullptr)
      << "a job that is there may start its ranks again";
  EXPECT_TRUE(t.world.Command(DrainJobs{false}).ok());
  EXPECT_NE(t.world.Join(MakeSpec({.name = "new"}), 0), nullptr);
}

TEST(Commands, AUserHandlesItsOwnJobsAlone) {
  Trained t;  // of user 1000
  const auto as = [&t](uint32_t uid) {
    t.world.Post(AdminCommand{{.uid = uid, .level = AdminLevel::kUser},
                              std::make_shared<CommandTicket>(),
                              SuspendJob{"gpt", true}});
    t.world.loop().Turn();
    return t.world.TakeReply<CommandDone>()->result.id();
  };
  EXPECT_EQ(as(1001), ErrorId::kAdminNotFound);
  EXPECT_FALSE(t.world.tables().jobs[0]->suspended);
  EXPECT_EQ(as(1000), ErrorId::kNone);
  EXPECT_TRUE(t.world.tables().jobs[0]->suspended);
}

TEST(MuteCommand, EndsByItselfOrWhenItIsTakenBack) {
  ServeWorld world;
  const auto muted = [&world] {
    world.Post(SnapshotWanted{});
    world.loop().Turn();
    return world.TakeReply<SnapshotReady>()->snapshot->mutes;
  };
  EXPECT_TRUE(world.Command(MuteCheck{"DRAINING", kNsPerSecond}).ok());
  EXPECT_TRUE(world.Command(MuteCheck{"DRAINING", 3 * kNsPerSecond}).ok());
  EXPECT_TRUE(world.Command(MuteCheck{"NVME_SLOW", kNsPerSecond}).ok());
  ASSERT_EQ(muted().size(), 2u) << "the last word counts";
  EXPECT_EQ(muted()[0].left_ns, 3 * kNsPerSecond);
  world.clock().Advance(kNsPerSecond);
  ASSERT_EQ(muted().size(), 1u);
  EXPECT_EQ(muted()[0].code, "DRAINING");
  EXPECT_EQ(muted()[0].left_ns, 2 * kNsPerSecond);
  EXPECT_TRUE(world.Command(MuteCheck{"DRAINING", 0}).ok());
  EXPECT_TRUE(muted().empty());
  EXPECT_TRUE(world.jobs().settings().mutes().empty());
}

TEST(LogLevelCommand, TheConfiguredLevelComesBack) {
  ServeWorld world;
  EXPECT_TRUE(world.Command(ChangeLogLevel{LogLevel::kWarn, kNsPerSecond}).ok());
  EXPECT_NE(world.jobs().settings().log_level_until_ns(), 0);
  world.clock().Advance(kNsPerSecond);
  world.Settle();
  EXPECT_EQ(world.jobs().settings().log_level_until_ns(), 0);
}

// What a reload says of quotas and limits.
ApplySettings Configured(std::vector<QuotaRule> rules, uint64_t fallback_limit = kNoLimit) {
  ApplySettings settings;
  settings.live = {
      .log_level = LogLevel::kInfo, .jobs_max = 64, .quota_fallback = {.limit = fallback_limit}};
  settings.quotas = std::move(rules);
  settings.config = std::make_shared<ConfigRows>(ConfigRows{.file = "/etc/new.toml"});
  return settings;
}

TEST(ReloadCommand, JobsHaveTheNewQuotasAtOnce) {
  Trained t;  // of user 1000
  ASSERT_EQ(t.world.tables().jobs[0]->account, "user:1000");
  ASSERT_TRUE(
      t.world.Command(Configured({{"job:gpt", {.weight = 5, .priority = Priority::kHigh}}})).ok());
  EXPECT_EQ(t.world.tables().jobs[0]->account, "job:gpt");
  EXPECT_EQ(t.world.tables().jobs[0]->quota.weight, 5u);
  EXPECT_EQ(t.world.jobs().settings().config()->file, "/etc/new.toml");
  ASSERT_TRUE(t.world.Command(Configured({})).ok());
  EXPECT_EQ(t.world.tables().jobs[0]->account, "user:1000");
  EXPECT_EQ(t.world.tables().jobs[0]->quota.weight, 1u);
  EXPECT_EQ(t.trainer.Step({.seed = 2}).error, 0u);
}

TEST(ReloadCommand, WhatWasSetForAJobStays) {
  Trained t;
  ASSERT_TRUE(t.world.Command(SetJobQuota{"gpt", {.weight = 7}}).ok());
  ASSERT_TRUE(t.world.Command(Configured({{"user:1000", {.weight = 3}}})).ok());
  EXPECT_EQ(t.world.tables().jobs[0]->quota.weight, 7u);
}

TEST(ReloadCommand, AGuaranteeWithoutRoomIsRefusedAndNothingIsApplied) {
  Trained t;
  ApplySettings more =
      Configured({{"user:1001", {.guarantee = t.world.pool().total_bytes()}}}, 4096);
  more.live.jobs_max = 1;
  more.live.log_level = LogLevel::kError;
  const Status refused = t.world.Command(more);
  EXPECT_EQ(refused.id(), ErrorId::kQuotaRefused);
  EXPECT_NE(refused.why().find("gpt"), std::string::npos) << refused.Format();
  EXPECT_EQ(t.world.jobs().settings().live(), LiveSettings{});
  EXPECT_TRUE(t.world.tables().quotas.Rules().empty());
  EXPECT_EQ(t.world.jobs().settings().config(), nullptr);
}

TEST(ReloadCommand, LimitsHoldForTheNextJob) {
  Trained t;
  ApplySettings one = Configured({});
  one.live.jobs_max = 1;
  ASSERT_TRUE(t.world.Command(one).ok());
  EXPECT_EQ(t.world.Join(MakeSpec({.name = "new"}), 0), nullptr);
  EXPECT_EQ(t.world.TakeReply<Refused>()->why.id(), ErrorId::kTooManySessions);
  ASSERT_TRUE(
      t.world.Command(Configured({}, t.world.pool().total_bytes() - t.world.pool().free_bytes()))
          .ok());
  EXPECT_EQ(t.world.Join(MakeSpec({.name = "new"}), 0), nullptr);
  EXPECT_EQ(t.world.TakeReply<Refused>()->why.id(), ErrorId::kQuotaExceeded)
      << "users without a rule have a lower limit now";
  ASSERT_TRUE(t.world.Command(Configured({})).ok());
  EXPECT_NE(t.world.Join(MakeSpec({.name = "new"}), 0), nullptr);
}

TEST(ReloadCommand, ALevelThatWasSetForATimeEndsAtTheNewOne) {
  ServeWorld world;
  ASSERT_TRUE(world.Command(ChangeLogLevel{LogLevel::kDebug, kNsPerSecond}).ok());
  ApplySettings quiet = Configured({});
  quiet.live.log_level = LogLevel::kWarn;
  ASSERT_TRUE(world.Command(quiet).ok());
  EXPECT_NE(world.jobs().settings().log_level_until_ns(), 0) << "the reload does not end it";
  world.clock().Advance(kNsPerSecond);
  world.Settle();
  EXPECT_EQ(world.jobs().settings().log_level_until_ns(), 0);
  EXPECT_EQ(world.jobs().settings().live().log_level, LogLevel::kWarn);
  ASSERT_TRUE(world.Command(Configured({})).ok());
}

TEST(RecordedSpans, AreCopiesAndWorkOfTheJobFromTheCommandOn) {
  Trained t;
  Job* job = t.world.tables().FindJob("gpt");
  EXPECT_EQ(job->spans, nullptr);
  ASSERT_TRUE(t.world.Command(RecordSpans{"gpt", true}).ok());
  ASSERT_NE(job->spans, nullptr);
  EXPECT_EQ(t.trainer.Step({.seed = 2}).error, 0u);
  t.trainer.FetchAll();
  t.world.Settle();

  std::map<SpanKind, std::set<ChunkId>> chunks;
  for (const Span& span : job->spans->Since(0)) {
    EXPECT_LE(span.begin_ns, span.end_ns) << NameOf(span.kind);
    chunks[span.kind].insert(span.chunk);
  }
  std::set<ChunkId> all;
  for (ChunkId chunk = 0; chunk < t.trainer.spec().chunks.size(); ++chunk) all.insert(chunk);
  for (const SpanKind kind :
       {SpanKind::kFetch, SpanKind::kGradient, SpanKind::kUpdate, SpanKind::kScan})
    EXPECT_EQ(chunks[kind], all) << NameOf(kind);

  const std::shared_ptr<SpanLog> kept = job->spans;
  const size_t before = kept->Since(0).size();
  ASSERT_TRUE(t.world.Command(RecordSpans{"gpt", true}).ok());
  EXPECT_EQ(job->spans, kept) << "asked for twice, it goes on";
  ASSERT_TRUE(t.world.Command(RecordSpans{"gpt", false}).ok());
  EXPECT_EQ(t.trainer.Step({.seed = 3}).error, 0u);
  t.world.Settle();
  EXPECT_EQ(job->spans, nullptr);
  EXPECT_EQ(kept->Since(0).size(), before);
  EXPECT_EQ(t.world.Command(RecordSpans{"none", true}).id(), ErrorId::kAdminNotFound);
}

}  // namespace job_commands_test
}  // namespace tidepool::memserver

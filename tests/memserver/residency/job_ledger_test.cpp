#include "memserver/residency/job_ledger.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/units.h"

namespace tidepool::memserver {
namespace job_ledger_test {

// Account a has 6 GiB of 10, b 3.
Ledger TwoJobs() {
  Ledger ledger;
  ledger.pool_bytes = 10 * kGiB;
  ledger.rcache_limit = 2 * kGiB;
  ledger.jobs_max = 3;
  ledger.sessions_max = 5;
  ledger.holdings = {{"gpt2", "a", 6 * kGiB, kGiB, 3}, {"bert", "b", 3 * kGiB, kGiB / 2, 1}};
  return ledger;
}

Demand Of(const std::string& account, uint64_t pool_bytes) {
  return {
      .job = "new", .account = account, .pool_bytes = pool_bytes, .rcache_bytes = 0, .ranks = 1};
}

void ExpectParts(const Status& status, const std::vector<std::string>& parts) {
  const std::string text = status.Format();
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in " << text;
}

TEST(JobLedger, AdmitsWhatFitsExactly) {
  EXPECT_TRUE(AdmitJob(TwoJobs(), Of("c", kGiB)).ok());
  EXPECT_TRUE(
      AdmitRun(TwoJobs(), {.job = "new", .account = "c", .rcache_bytes = kGiB / 2, .ranks = 1})
          .ok());
}

TEST(JobLedger, NamesAskedFreeAndHolders) {
  const Status status = AdmitJob(TwoJobs(), Of("c", kGiB + 1));
  EXPECT_EQ(status.id(), ErrorId::kPoolFull);
  ExpectParts(status, {"new", std::to_string(kGiB + 1), std::to_string(kGiB), "gpt2 holds 6.00 GiB",
                       "bert holds 3.00 GiB"});
}

TEST(JobLedger, FrozenChunksCountForTheUserAndForNoJob) {
  Ledger ledger = TwoJobs();
  ledger.jobs_max = 3;
  ledger.quotas = {{.account = "user:7", .quota = {.limit = kGiB / 2}}};
  Demand demand = Of("c", kGiB / 2);
  demand.uid = 7;
  demand.frozen_bytes = kGiB / 2 + 1;
  const Status status = AdmitFrozen(&ledger, demand);
  EXPECT_EQ(status.id(), ErrorId::kQuotaExceeded);
  ExpectParts(status,
              {"job new needs", "for frozen chunks", "user:7 may have", std::to_string(kGiB / 2)});
  demand.frozen_bytes = kGiB / 2;
  ASSERT_TRUE(AdmitFrozen(&ledger, demand).ok());
  EXPECT_EQ(ledger.PoolUsedBy("user:7"), kGiB / 2);
  EXPECT_TRUE(AdmitJob(ledger, demand).ok())
      << "there may be three jobs, and frozen chunks are none";
  demand.pool_bytes += 1;
  EXPECT_EQ(AdmitJob(ledger, demand).id(), ErrorId::kPoolFull) << "both come out of one pool";
}

TEST(JobLedger, RefusesRcachesBeyondTheLimit) {
  const Status status =
      AdmitRun(TwoJobs(), {.job = "new", .account = "c", .rcache_bytes = kGiB / 2 + 1, .ranks = 1});
  EXPECT_EQ(status.id(), ErrorId::kRcacheRefused);
  ExpectParts(status, {"gpt2 holds 1.00 GiB"});
}

TEST(JobLedger, RefusesMoreJobsOrRanksThanAllowed) {
  Ledger ledger = TwoJobs();
  ledger.jobs_max = 2;
  EXPECT_EQ(AdmitJob(ledger, Of("c", 1)).id(), ErrorId::kTooManySessions);
  EXPECT_EQ(AdmitRun(ledger, {.job = "new", .account = "c", .ranks = 2}).id(),
            ErrorId::kTooManySessions);
  EXPECT_TRUE(AdmitRun(ledger, {.job = "new", .account = "c", .ranks = 1}).ok());
}

TEST(JobLedger, AUserHasSoManyRanksWhateverTheJobsAccounts) {
  Ledger ledger = TwoJobs();
  for (Holding& holding : ledger.holdings) holding.uid = 1000;
  Demand demand{.job = "new", .account = "c", .ranks = 1, .uid = 1000, .user_ranks_max = 5};
  EXPECT_TRUE(AdmitRun(ledger, demand).ok());
  demand.user_ranks_max = 4;
  const Status status = AdmitRun(ledger, demand);
  EXPECT_EQ(status.id(), ErrorId::kQuotaExceeded);
  ExpectParts(status, {"user 1000", "more than the 4", "other jobs have 4"});
  demand.uid = 1001;
  EXPECT_TRUE(AdmitRun(ledger, demand).ok());
  demand.ranks = 5;
  EXPECT_FALSE(CouldEverFit(ledger, demand).ok()) << "no use in waiting";
}

TEST(JobLedger, TheLastSessionsAreForUsersWhoHaveFew) {
  Ledger ledger = TwoJobs();
  ledger.sessions_max = 32;
  ledger.holdings[0].ranks = 12;
  ledger.holdings[0].uid = 1000;
  ledger.holdings[1].ranks = 12;
  ledger.holdings[1].uid = 1001;
  Demand demand{.job = "new", .account = "c", .ranks = 2, .uid = 1001, .is_limited = true};
  demand.user_ranks_max = 16;
  EXPECT_EQ(AdmitRun(ledger, demand).id(), ErrorId::kQuotaExceeded)
      << "two users would have them all";
  demand.uid = 1002;
  EXPECT_TRUE(AdmitRun(ledger, demand).ok());
  demand.uid = 1001;
  demand.user_ranks_max = 32;
  EXPECT_TRUE(AdmitRun(ledger, demand).ok()) << "the operator has said that one may have all";
}

TEST(JobLedger, OverfullIsNotNegativeRoom) {
  Ledger ledger = TwoJobs();
  ledger.pool_bytes = kGiB;
  EXPECT_EQ(AdmitJob(ledger, Of("c", 1)).id(), ErrorId::kPoolFull);
}

TEST(JobLedger, AGuaranteeIsRoomForItsAccountAlone) {
  Ledger ledger = TwoJobs();
  ledger.quotas = {{"c", {.guarantee = kGiB / 2}}};
  EXPECT_TRUE(AdmitJob(ledger, Of("d", kGiB / 2)).ok());
  const Status status = AdmitJob(ledger, Of("d", kGiB / 2 + 1));
  EXPECT_EQ(status.id(), ErrorId::kPoolFull);
  ExpectParts(status, {"512 MiB are kept for c"});
  EXPECT_TRUE(AdmitJob(ledger, Of("c", kGiB)).ok())
      << "what nobody is guaranteed may be borrowed on top";
}

TEST(JobLedger, WhatAnAccountUsesOfItsGuaranteeIsNotKeptAgain) {
  Ledger ledger = TwoJobs();
  ledger.quotas = {{"b", {.guarantee = 3 * kGiB + kGiB / 4}}};
  EXPECT_EQ(RoomFor(ledger, "c").kept, kGiB / 4);
  EXPECT_EQ(RoomFor(ledger, "c").bytes, kGiB - kGiB / 4);
  EXPECT_EQ(RoomFor(ledger, "b").bytes, kGiB);
}

TEST(JobLedger, ALimitCountsAllJobsOfTheAccount) {
  Ledger ledger = TwoJobs();
  ledger.quotas = {{"b", {.limit = 3 * kGiB + 100}}};
  EXPECT_TRUE(AdmitJob(ledger, Of("b", 100)).ok());
  const Status status = AdmitJob(ledger, Of("b", 101));
  EXPECT_EQ(status.id(), ErrorId::kQuotaExceeded);
  ExpectParts(status, {"100 bytes", "bert holds 3.00 GiB"});
  EXPECT_EQ(status.Format().find("gpt2"), std::string::npos)
      << "others are none of its business: " << status.Format();
}

TEST(JobLedger, UsersWithoutARuleHaveTheFallback) {
  Ledger ledger = TwoJobs();
  ledger.fallback.limit = 100;
  EXPECT_TRUE(AdmitJob(ledger, Of("c", 100)).ok());
  EXPECT_EQ(AdmitJob(ledger, Of("c", 101)).id(), ErrorId::kQuotaExceeded);
}

TEST(JobLedger, MoreGuaranteesThanRoomLeaveEachAccountItsOwn) {
  Ledger ledger = TwoJobs();  // as after a restart with another configuration
  ledger.quotas = {{"c", {.guarantee = 4 * kGiB}}, {"d", {.guarantee = 4 * kGiB}}};
  EXPECT_TRUE(AdmitJob(ledger, Of("c", kGiB)).ok());
  EXPECT_EQ(AdmitJob(ledger, Of("e", 1)).id(), ErrorId::kPoolFull);
}

TEST(JobLedger, RoomThatIsReservedAndNotUsedIsNamedAsSuch) {
  Ledger ledger = TwoJobs();
  ledger.quotas = {{"c", {.guarantee = kGiB}}};
  const Status status = AdmitJob(ledger, Of("d", kGiB));
  EXPECT_EQ(status.id(), ErrorId::kPoolFull);
  ExpectParts(status,
              {"free are 0 B", "1.00 GiB (1073741824 bytes) are not used and reserved for others",
               "1.00 GiB are kept for c"});
  ledger.quotas.clear();
  EXPECT_EQ(AdmitJob(ledger, Of("d", 2 * kGiB)).what().find("reserved"), std::string::npos);
}

TEST(JobLedger, WhatCouldNeverFitIsKnown) {
  Ledger ledger = TwoJobs();
  ledger.quotas = {{"a", {.guarantee = 4 * kGiB}}};
  EXPECT_TRUE(CouldEverFit(ledger, Of("c", 6 * kGiB)).ok());
  EXPECT_EQ(CouldEverFit(ledger, Of("c", 6 * kGiB + 1)).id(), ErrorId::kPoolFull);
  EXPECT_TRUE(CouldEverFit(ledger, Of("a", 10 * kGiB)).ok());
  EXPECT_EQ(CouldEverFit(ledger, {.job = "new", .account = "c", .ranks = 6}).id(),
            ErrorId::kTooManySessions);
}

TEST(JobLedger, AGuaranteeIsGivenOnlyWhereThereIsRoomForIt) {
  Ledger ledger = TwoJobs();
  EXPECT_TRUE(CheckRule(ledger, {"a", {.guarantee = 7 * kGiB}}, "").ok());
  EXPECT_EQ(CheckRule(ledger, {"a", {.guarantee = 7 * kGiB + 1}}, "").id(), ErrorId::kQuotaRefused);
  ledger.quotas = {{"c", {.guarantee = kGiB}}};
  const Status status = CheckRule(ledger, {"a", {.guarantee = 6 * kGiB + 1}}, "");
  EXPECT_EQ(status.id(), ErrorId::kQuotaRefused);
  ExpectParts(status, {"1073741825 bytes", "free are 1.00 GiB", "1.00 GiB are kept for c"});
}

TEST(JobLedger, AJobThatLeavesItsAccountLeavesTheGuaranteeThere) {
  Ledger ledger = TwoJobs();
  ledger.quotas = {{"a", {.guarantee = 6 * kGiB}}};
  EXPECT_EQ(CheckRule(ledger, {"job:gpt2", {}}, "gpt2").id(), ErrorId::kQuotaRefused)
      << "6 GiB would be guaranteed again, 1 GiB is free";
  ledger.quotas = {{"a", {.guarantee = kGiB}}};
  EXPECT_TRUE(CheckRule(ledger, {"job:gpt2", {}}, "gpt2").ok());
}

TEST(JobLedger, WhatMakesAnOvercommittedPoolNoWorseIsAllowed) {
  Ledger ledger = TwoJobs();
  ledger.quotas = {{"c", {.guarantee = 4 * kGiB}}};
  EXPECT_TRUE(CheckRule(ledger, {"a", {.limit = 6 * kGiB}}, "").ok());
  EXPECT_TRUE(CheckRule(ledger, {"c", {.guarantee = 3 * kGiB}}, "").ok());
  EXPECT_EQ(CheckRule(ledger, {"c", {.guarantee = 4 * kGiB + 1}}, "").id(), ErrorId::kQuotaRefused);
}

TEST(Quota, IsSoundOrSaysWhyNot) {
  EXPECT_TRUE(Validate({.guarantee = 5, .limit = 5, .weight = kWeightMax}).ok());
  EXPECT_FALSE(Validate({.guarantee = 6, .limit = 5}).ok());
  EXPECT_FALSE(Validate({.weight = 0}).ok());
  EXPECT_FALSE(Validate({.weight = kWeightMax + 1}).ok());
}

TEST(QuotaBook, AJobsOwnRuleComesBeforeItsUsers) {
  QuotaBook book({{"user:7", {.weight = 2}}, {"job:gpt", {.weight = 3}}}, {.weight = 1});
  EXPECT_EQ(book.AccountOf("gpt", 7), "job:gpt");
  EXPECT_EQ(book.AccountOf("bert", 7), "user:7");
  EXPECT_EQ(book.QuotaOf("user:7").weight, 2u);
  EXPECT_EQ(book.QuotaOf("user:8").weight, 1u);
  book.SetJob("bert", {.weight = 9});
  EXPECT_EQ(book.AccountOf("bert", 7), "job:bert");
  EXPECT_EQ(book.QuotaOf("job:bert").weight, 9u);
  EXPECT_EQ(book.Rules().size(), 3u);
  book.ForgetJob("bert");
  EXPECT_EQ(book.AccountOf("bert", 7), "user:7");
}

TEST(QuotaBook, WhatWasSetWinsOverTheConfiguredUntilItIsForgotten) {
  QuotaBook book({{"job:gpt", {.weight = 3}}}, {});
  book.SetJob("gpt", {.weight = 4});
  EXPECT_EQ(book.QuotaOf("job:gpt").weight, 4u);
  ASSERT_EQ(book.Rules().size(), 1u);
  EXPECT_EQ(book.Rules()[0].quota.weight, 4u);
  book.ForgetJob("gpt");
  EXPECT_EQ(book.QuotaOf("job:gpt").weight, 3u);
}

TEST(QuotaBook, AShareIsTheJobsAndItsAccountStays) {
  QuotaBook book({{"user:7", {.limit = 100, .weight = 2}}}, {});
  book.SetShare("gpt", 5, Priority::kHigh);
  EXPECT_EQ(book.AccountOf("gpt", 7), "user:7");
  EXPECT_EQ(book.QuotaFor("gpt", 7),
            (Quota{.limit = 100, .weight = 5, .priority = Priority::kHigh}));
  EXPECT_EQ(book.QuotaFor("bert", 7), book.QuotaOf("user:7"))
      << "others of the account are as they were";
  EXPECT_EQ(book.Rules().size(), 1u);
  book.SetJob("gpt", {.weight = 3});
  EXPECT_EQ(book.QuotaFor("gpt", 7).weight, 3u) << "an account of its own says all";
  book.ForgetJob("gpt");
  book.SetShare("gpt", 5, Priority::kHigh);
  book.ForgetJob("gpt");
  EXPECT_EQ(book.QuotaFor("gpt", 7).weight, 2u);
}

// memctl job quota gpt --guarantee ..., then --weight 3 --priority high: `quotas` and `ps` say the
// same of it.
TEST(QuotaBook, AnAccountOfOneJobHasTheShareThatWasSetForTheJob) {
  QuotaBook book({{"job:bert", {.limit = 100, .weight = 2}}}, {});
  book.SetJob("gpt", {.guarantee = 50, .limit = 100});
  for (const char* job : {"gpt", "bert"}) {
    book.SetShare(job, 3, Priority::kHigh);
    const Quota shown = book.QuotaOf(JobAccount(job));
    EXPECT_EQ(shown, book.QuotaFor(job, 7));
    EXPECT_EQ(shown.weight, 3u);
    EXPECT_EQ(shown.priority, Priority::kHigh);
    EXPECT_EQ(shown.limit, 100u) << "the share alone is another one";
  }
  for (const QuotaRule& rule : book.Rules()) EXPECT_EQ(rule.quota, book.QuotaOf(rule.account));
  const QuotaBook reloaded = book.Reconfigured({{"job:bert", {.limit = 70}}}, {});
  EXPECT_EQ(reloaded.QuotaOf("job:bert"), reloaded.QuotaFor("bert", 7));
  EXPECT_EQ(reloaded.QuotaOf("job:bert").limit, 70u);
  book.ForgetJob("bert");
  EXPECT_EQ(book.QuotaOf("job:bert").weight, 2u);
}

}  // namespace job_ledger_test
}  // namespace tidepool::memserver

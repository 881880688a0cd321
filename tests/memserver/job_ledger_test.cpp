#include "memserver/residency/job_ledger.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/units.h"

namespace tidepool::memserver {
namespace {

Ledger TwoJobs() {
  Ledger ledger;
  ledger.pool_bytes = 10 * kGiB;
  ledger.rcache_limit = 2 * kGiB;
  ledger.jobs_max = 3;
  ledger.sessions_max = 5;
  ledger.sessions = 4;
  ledger.holdings = {{"gpt2", 6 * kGiB, kGiB}, {"bert", 3 * kGiB, kGiB / 2}};
  return ledger;
}

TEST(JobLedger, AdmitsWhatFitsExactly) {
  EXPECT_TRUE(AdmitJob(TwoJobs(), "new", kGiB).ok());
  EXPECT_TRUE(AdmitSession(TwoJobs(), "new", kGiB / 2).ok());
}

TEST(JobLedger, NamesAskedFreeAndHolders) {
  const Status status = AdmitJob(TwoJobs(), "new", kGiB + 1);
  EXPECT_EQ(status.id(), ErrorId::kPoolFull);
  const std::string text = status.Format();
  for (const std::string& part :
       std::vector<std::string>{"new", std::to_string(kGiB + 1), std::to_string(kGiB), "gpt2 holds 6.00 GiB", "bert holds 3.00 GiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in " << text;
  }
}

TEST(JobLedger, RefusesAnRcacheBeyondTheLimit) {
  const Status status = AdmitSession(TwoJobs(), "new", kGiB / 2 + 1);
  EXPECT_EQ(status.id(), ErrorId::kRcacheRefused);
  EXPECT_NE(status.Format().find("gpt2 holds 1.00 GiB"), std::string::npos);
}

TEST(JobLedger, RefusesMoreJobsOrSessionsThanAllowed) {
  Ledger ledger = TwoJobs();
  ledger.jobs_max = 2;
  EXPECT_EQ(AdmitJob(ledger, "new", 1).id(), ErrorId::kTooManySessions);
  ledger.sessions = 5;
  EXPECT_EQ(AdmitSession(ledger, "new", 1).id(), ErrorId::kTooManySessions);
}

TEST(JobLedger, OverfullIsNotNegativeRoom) {
  Ledger ledger = TwoJobs();
  ledger.pool_bytes = kGiB;
  EXPECT_EQ(AdmitJob(ledger, "new", 1).id(), ErrorId::kPoolFull);
}

}  // namespace
}  // namespace tidepool::memserver

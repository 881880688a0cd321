#include "memserver/residency/job_ledger.h"

#include <utility>

#include "base/units.h"

namespace tidepool::memserver {
namespace {

// "gpt2 holds 1.5 GiB, bert holds 300 MiB", or "no job holds any".
std::string Held(const Ledger& ledger, uint64_t Holding::*bytes) {
  std::string text;
  for (const Holding& holding : ledger.holdings) {
    if (holding.*bytes == 0) continue;
    if (!text.empty()) text += ", ";
    text += holding.job + " holds " + FormatBytes(holding.*bytes);
  }
  return text.empty() ? "no job holds any" : text;
}

uint64_t Sum(const Ledger& ledger, uint64_t Holding::*bytes) {
  uint64_t sum = 0;
  for (const Holding& holding : ledger.holdings) sum += holding.*bytes;
  return sum;
}

// Exact bytes beside the rounded form: a user who must enlarge a flag needs them.
std::string Exact(uint64_t bytes) {
  return FormatBytes(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace

uint64_t Ledger::PoolUsed() const {
  return Sum(*this, &Holding::pool_bytes);
}
uint64_t Ledger::RcacheUsed() const {
  return Sum(*this, &Holding::rcache_bytes);
}

Status AdmitJob(const Ledger& ledger, const std::string& job, uint64_t pool_bytes) {
  if (ledger.holdings.size() >= ledger.jobs_max) {
    return Status(ErrorId::kTooManySessions, "job " + job + " would be one more than the " + std::to_string(ledger.jobs_max) + " allowed");
  }
  const uint64_t used = ledger.PoolUsed();
  const uint64_t free = ledger.pool_bytes > used ? ledger.pool_bytes - used : 0;
  if (pool_bytes <= free) return Status();
  return Status(ErrorId::kPoolFull, "job " + job + " needs " + Exact(pool_bytes) + " of host memory; free are " + Exact(free) + " of " +
                                        FormatBytes(ledger.pool_bytes))
      .Why(Held(ledger, &Holding::pool_bytes));
}

Status AdmitSession(const Ledger& ledger, const std::string& job, uint64_t rcache_bytes) {
  if (ledger.sessions >= ledger.sessions_max) {
    return Status(ErrorId::kTooManySessions,
                  "a rank of job " + job + " would be one more than the " + std::to_string(ledger.sessions_max) + " sessions allowed");
  }
  const uint64_t used = ledger.RcacheUsed();
  const uint64_t free = ledger.rcache_limit > used ? ledger.rcache_limit - used : 0;
  if (rcache_bytes <= free) return Status();
  return Status(ErrorId::kRcacheRefused, "a rank of job " + job + " asks for an rCache of " + Exact(rcache_bytes) + "; free are " +
                                             Exact(free) + " of " + FormatBytes(ledger.rcache_limit))
      .Why(Held(ledger, &Holding::rcache_bytes));
}

}  // namespace tidepool::memserver

// Admission: may a job's memory be reserved? A pure function of what is asked and what is held; it
// moves nothing.
//
// Any thread. An admitted job has everything that it can ever need, so no later request fails for
// lack of room: all its pool memory is taken with the first rank, and the rCaches and slots of all
// its ranks with the first rank of each run.
// The rule for the pool: an unused guarantee is room for its account alone; beyond it, whatever is
// not guaranteed to others may be borrowed up to the limit. What was borrowed is never taken back
// from a job that runs: newcomers wait or are refused instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "memserver/residency/quota.h"

namespace tidepool::memserver {

// What one admitted job holds; or the frozen chunks of one user, which hold only pool memory.
struct Holding {
  std::string job;  // what it is called in texts
  std::string account;
  uint64_t pool_bytes = 0;
  uint64_t rcache_bytes = 0;  // of all ranks of its run; 0 when it has no ranks
  uint32_t ranks = 0;         // of its run
  uint32_t uid = 0;
  uint64_t nvme_bytes = 0;
  bool is_frozen = false;  // counts for no job
  JobId id = 0;            // 0 of frozen chunks
  // Until when a job without ranks is kept, in seconds since 1970. INT64_MAX: without end; 0: it
  // has ranks.
  int64_t kept_until = 0;
};

// The limits of the daemon and who holds what of them.
struct Ledger {
  uint64_t pool_bytes = 0;    // all of it
  uint64_t rcache_limit = 0;  // memory for host-device rCaches of all sessions
  uint32_t jobs_max = 0;
  uint32_t sessions_max = 0;
  Quota fallback;                 // of accounts that have no rule; guarantees nothing
  std::vector<QuotaRule> quotas;  // of accounts that have one
  std::vector<Holding> holdings;

  // Bytes held by all, and by one account; and what an account may have.
  uint64_t PoolUsed() const;
  uint64_t RcacheUsed() const;
  uint64_t PoolUsedBy(const std::string& account) const;
  uint64_t NvmeUsedBy(const std::string& account) const;
  Quota QuotaOf(const std::string& account) const;
  // Bytes guaranteed to accounts other than `account`, and not used by them yet.
  uint64_t KeptFrom(const std::string& account) const;
};

// How much of the pool one more job of an account may have.
struct Room {
  uint64_t free = 0;          // of the pool, held by nobody
  uint64_t kept = 0;          // of that, guaranteed to others
  uint64_t account_used = 0;  // by all jobs of the account
  uint64_t bytes = 0;         // the largest job that would be admitted
};
Room RoomFor(const Ledger& ledger, const std::string& account);

// What a job asks for, all or a part of it together.
struct Demand {
  std::string job = {}, account = {};
  uint64_t pool_bytes = 0;    // 0 when it has them already
  uint64_t rcache_bytes = 0;  // of all its ranks
  uint32_t ranks = 0;
  uint32_t uid = 0;
  uint32_t user_ranks_max = UINT32_MAX;  // of all jobs of this user together
  uint32_t user_jobs_max = UINT32_MAX;
  bool is_limited = false;  // by one user's share; root and the owner are not
  uint64_t nvme_bytes = 0;
  // Bytes of the pool for frozen chunks that the user does not have yet: they count for the user.
  uint64_t frozen_bytes = 0;
};
// Tells whether there is room for the frozen chunks; ok: the ledger holds them from now on, and
// AdmitJob may follow. Errors: those of AdmitJob.
Status AdmitFrozen(Ledger* ledger, const Demand& demand);
// Tells whether there is room for one more job. Errors: kPoolFull (asked, free, held by whom,
// guaranteed to whom), kQuotaExceeded (asked, left of the limit, held by which jobs of the account;
// or the user has its share of the jobs, residency/fair_places.h), kTooManySessions.
Status AdmitJob(const Ledger& ledger, const Demand& demand);
// Tells whether there is room for all ranks of a run. Errors: kRcacheRefused, kTooManySessions,
// kQuotaExceeded (more ranks than one user may have).
Status AdmitRun(const Ledger& ledger, const Demand& demand);
// Tells whether the account may have so much more on NVMe (PlaceStates finds whether it is free
// there). Errors: kQuotaExceeded.
Status AdmitSpill(const Ledger& ledger, const Demand& demand);
// Tells whether both would be admitted if nobody held anything: true of every job that waits for
// room.
Status CouldEverFit(Ledger ledger, const Demand& demand);
// Tells whether this rule may hold from now on, with what `job` holds counted for its account
// (another account's, or none's, stays as it is): there must be room for all that is guaranteed and
// not used yet, or at least as much as there is now. Errors: kQuotaRefused.
Status CheckRule(const Ledger& ledger, const QuotaRule& rule, const std::string& job);
// The same for all rules together: `after` has the same holdings as `before`, in the accounts that
// they belong to then. Errors: kQuotaRefused.
Status CheckRules(const Ledger& before, const Ledger& after);

}  // namespace tidepool::memserver

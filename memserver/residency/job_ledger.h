// Admission: whether a job's memory may be reserved. A pure function of the demand and the
// holdings; it moves nothing.
//
// Any thread. An admitted job has everything that it can ever need, so no later request fails for
// lack of room: its pool memory is taken with its first rank, and the rCaches and slots of all its
// ranks with the first rank of each run. The rule for the pool: an unused guarantee is reserved for
// its account; beyond it, an account may borrow, up to its limit, whatever is not guaranteed to
// others. Borrowed memory is never taken back from a running job: newcomers wait or are refused
// instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "memserver/residency/quota.h"

namespace tidepool::memserver {

// What one admitted job holds, or the frozen chunks of one user, which hold only pool memory.
struct Holding {
  std::string job;  // its name in texts
  std::string account;
  uint64_t pool_bytes = 0;
  uint64_t rcache_bytes = 0;  // of all ranks of its run; 0 when it has no ranks
  uint32_t ranks = 0;         // of its run
  uint32_t uid = 0;
  uint64_t nvme_bytes = 0;
  bool is_frozen = false;  // not counted as a job
  JobId id = 0;            // 0 for frozen chunks
  // Until when a job without ranks is kept, in seconds since 1970. INT64_MAX: without end; 0: it
  // has ranks.
  int64_t kept_until = 0;
};

// The limits of the daemon, and what is held of them.
struct Ledger {
  uint64_t pool_bytes = 0;    // total size
  uint64_t rcache_limit = 0;  // memory for host-device rCaches of all sessions
  uint32_t jobs_max = 0;
  uint32_t sessions_max = 0;
  Quota fallback;                 // of accounts without a rule; guarantees nothing
  std::vector<QuotaRule> quotas;  // of accounts with a rule
  std::vector<Holding> holdings;

  // Bytes held by all accounts, and by one; and the quota of an account.
  uint64_t PoolUsed() const;
  uint64_t RcacheUsed() const;
  uint64_t PoolUsedBy(const std::string& account) const;
  uint64_t NvmeUsedBy(const std::string& account) const;
  Quota QuotaOf(const std::string& account) const;
  // Guaranteed bytes that accounts other than `account` do not use yet.
  uint64_t KeptFrom(const std::string& account) const;
};

// How much of the pool one more job of an account may have.
struct Room {
  uint64_t free = 0;          // not held by anyone
  uint64_t kept = 0;          // of that, guaranteed to others
  uint64_t account_used = 0;  // by all jobs of the account
  uint64_t bytes = 0;         // the largest job that would be admitted
};
Room RoomFor(const Ledger& ledger, const std::string& account);

// What a job asks for: all of it, or a part.
struct Demand {
  std::string job = {}, account = {};
  uint64_t pool_bytes = 0;    // 0 if it has them already
  uint64_t rcache_bytes = 0;  // of all its ranks
  uint32_t ranks = 0;
  uint32_t uid = 0;
  uint32_t user_ranks_max = UINT32_MAX;  // limit on all jobs of this user together
  uint32_t user_jobs_max = UINT32_MAX;
  bool is_limited = false;  // by one user's share; false for root and the owner
  uint64_t nvme_bytes = 0;
  // Pool bytes of frozen chunks that the user does not have yet; they count for the user.
  uint64_t frozen_bytes = 0;
};
// Checks whether there is room for the frozen chunks. If ok, the ledger holds them from now on, and
// AdmitJob may follow. Errors: those of AdmitJob.
Status AdmitFrozen(Ledger* ledger, const Demand& demand);
// Checks whether there is room for one more job. Errors: kPoolFull (bytes asked, free, held by
// whom, guaranteed to whom), kQuotaExceeded (bytes asked, left of the limit, held by which jobs of
// the account; or the user has its share of the jobs, residency/fair_places.h), kTooManySessions.
Status AdmitJob(const Ledger& ledger, const Demand& demand);
// Checks whether there is room for all ranks of a run. Errors: kRcacheRefused, kTooManySessions,
// kQuotaExceeded (more ranks than one user may have).
Status AdmitRun(const Ledger& ledger, const Demand& demand);
// Checks whether the account may use that much more NVMe (PlaceStates finds whether it is free).
// Errors: kQuotaExceeded.
Status AdmitSpill(const Ledger& ledger, const Demand& demand);
// Checks whether an empty server would admit both: true of every job that waits for room.
Status CouldEverFit(Ledger ledger, const Demand& demand);
// Checks whether this rule may take effect now, with what `job` holds counted for its account
// (another account's, or none's, is unchanged): there must be room for all unused guarantees, or at
// least as much as there is now. Errors: kQuotaRefused.
Status CheckRule(const Ledger& ledger, const QuotaRule& rule, const std::string& job);
// The same for all rules together: `after` has the holdings of `before`, in the accounts that they
// belong to then. Errors: kQuotaRefused.
Status CheckRules(const Ledger& before, const Ledger& after);

}  // namespace tidepool::memserver

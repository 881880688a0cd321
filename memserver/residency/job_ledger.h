// Admission: may a job's memory be reserved? A pure function of what is asked and what is held; it moves nothing.
//
// Any thread. A job that is admitted has everything it can ever need, so no later request fails for lack of room (all is taken at once).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::memserver {

// What one admitted job holds.
struct Holding {
  std::string job;
  uint64_t pool_bytes = 0;
  uint64_t rcache_bytes = 0;  // of all its sessions
};

// The limits of the daemon and who holds what of them.
struct Ledger {
  uint64_t pool_bytes = 0;    // all of it
  uint64_t rcache_limit = 0;  // memory for host-device rCaches of all sessions
  uint32_t jobs_max = 0;
  uint32_t sessions_max = 0;
  uint32_t sessions = 0;
  std::vector<Holding> holdings;

  uint64_t PoolUsed() const;
  uint64_t RcacheUsed() const;
};

// Is there room for one more job of `pool_bytes`? Errors: kPoolFull (asked, free, held by whom), kTooManySessions.
Status AdmitJob(const Ledger& ledger, const std::string& job, uint64_t pool_bytes);
// Is there room for one more session with `rcache_bytes`? Errors: kRcacheRefused, kTooManySessions.
Status AdmitSession(const Ledger& ledger, const std::string& job, uint64_t rcache_bytes);

}  // namespace tidepool::memserver

#include "memserver/jobs/admission/build_ledger.h"

#include <string>
#include <utility>

#include "memserver/jobs/job_lease.h"

namespace tidepool::memserver {

Ledger BuildLedger(const LoopNeighbours& neighbours, const LoopOptions& options,
                   const Tables& tables, const AdminSettings& settings) {
  Ledger ledger;
  ledger.pool_bytes = neighbours.pool->total_bytes();
  ledger.rcache_limit = options.rcache_limit;
  ledger.jobs_max = settings.live().jobs_max;
  ledger.sessions_max = options.limits.sessions_max;
  ledger.fallback = settings.live().quota_fallback;
  ledger.quotas = tables.quotas.Rules();

  for (const auto& job : tables.jobs) {
    Holding holding{.job = job->spec().name,
                    .account = job->account,
                    .pool_bytes = job->states->pool_bytes(),
                    .uid = job->uid,
                    .nvme_bytes = job->states->nvme_total(),
                    .id = job->id,
                    .kept_until = KeptUntilSeconds(*job, options, *neighbours.clock).value_or(0)};
    // Counts what all ranks of the run may come to hold, attached or not.
    if (job->HasRanks()) {
      holding.ranks = job->spec().world;
      holding.rcache_bytes =
          job->client_owned_rcache ? 0 : job->spec().world * job->spec().rcache_bytes;
    }
    ledger.holdings.push_back(std::move(holding));
  }

  for (const SetAside& job : tables.set_aside) {
    ledger.holdings.push_back(
        {.job = job.states().spec().name,
         .account = tables.quotas.AccountOf(job.states().spec().name, job.uid),
         .pool_bytes = job.states().pool_bytes(),
         .uid = job.uid,
         .nvme_bytes = job.states().nvme_total()});
  }

  for (const auto& [uid, bytes] : tables.frozen->BytesByUser()) {
    const std::string account = UserAccount(uid);
    ledger.holdings.push_back({.job = account + " in frozen chunks",
                               .account = account,
                               .pool_bytes = bytes,
                               .uid = uid,
                               .is_frozen = true});
  }
  return ledger;
}

}  // namespace tidepool::memserver

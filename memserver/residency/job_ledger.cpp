#include "memserver/residency/job_ledger.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/planted.h"
#include "base/units.h"
#include "memserver/residency/fair_places.h"

namespace tidepool::memserver {
namespace {

// What a newcomer may expect: a job with ranks ends when it is done.
std::string KeptText(const Holding& holding) {
  if (holding.kept_until == 0) return "";
  if (holding.kept_until == INT64_MAX) return " (suspended, kept without end)";
  return " (without ranks, kept until " + FormatWhen(holding.kept_until, WallSeconds()) + ")";
}

// "gpt2 holds 1.50 GiB, bert holds 300 MiB (without ranks, kept until 13:05)", or "no job holds
// any"; for one account, or for all if it is empty.
std::string Held(const Ledger& ledger, uint64_t Holding::*bytes, const std::string& account = "") {
  std::string text;
  for (const Holding& holding : ledger.holdings) {
    if (holding.*bytes == 0 || (!account.empty() && holding.account != account)) continue;
    if (!text.empty()) text += ", ";
    text += holding.job + " holds " + FormatBytes(holding.*bytes) + KeptText(holding);
  }
  return text.empty() ? "no job holds any" : text;
}

uint64_t Sum(const Ledger& ledger, uint64_t Holding::*bytes) {
  uint64_t sum = 0;
  for (const Holding& holding : ledger.holdings) sum += holding.*bytes;
  return sum;
}

uint64_t Minus(uint64_t from, uint64_t bytes) {
  return from > bytes ? from - bytes : 0;
}

// Exact bytes besides the rounded form: a user who must enlarge a flag needs them.
std::string Exact(uint64_t bytes) {
  return FormatBytes(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

// The unused part of the guarantee of each account other than `account`.
std::map<std::string, uint64_t> Unused(const Ledger& ledger, const std::string& account) {
  std::map<std::string_view, uint64_t> used;
  for (const Holding& holding : ledger.holdings) used[holding.account] += holding.pool_bytes;
  std::map<std::string, uint64_t> unused;
  for (const QuotaRule& rule : ledger.quotas) {
    if (rule.account == account || rule.quota.guarantee == 0) continue;
    const uint64_t bytes = Minus(rule.quota.guarantee, used[rule.account]);
    if (bytes > 0) unused[rule.account] = bytes;
  }
  return unused;
}

std::string Guaranteed(const Ledger& ledger, const std::string& account) {
  std::string text;
  for (const auto& [name, bytes] : Unused(ledger, account))
    text += ", " + FormatBytes(bytes) + " are kept for " + name;
  return text;
}

}  // namespace

uint64_t Ledger::PoolUsed() const {
  return Sum(*this, &Holding::pool_bytes);
}
uint64_t Ledger::RcacheUsed() const {
  return Sum(*this, &Holding::rcache_bytes);
}

uint64_t Ledger::PoolUsedBy(const std::string& account) const {
  uint64_t used = 0;
  for (const Holding& holding : holdings)
    used += holding.account == account ? holding.pool_bytes : 0;
  return used;
}

uint64_t Ledger::NvmeUsedBy(const std::string& account) const {
  uint64_t used = 0;
  for (const Holding& holding : holdings)
    used += holding.account == account ? holding.nvme_bytes : 0;
  return used;
}

Quota Ledger::QuotaOf(const std::string& account) const {
  const auto it = std::find_if(quotas.begin(), quotas.end(),
                               [&](const QuotaRule& rule) { return rule.account == account; });
  return it == quotas.end() ? fallback : it->quota;
}

uint64_t Ledger::KeptFrom(const std::string& account) const {
  uint64_t kept = 0;
  for (const auto& [name, bytes] : Unused(*this, account)) kept += bytes;
  return kept;
}

Room RoomFor(const Ledger& ledger, const std::string& account) {
  const Quota quota = ledger.QuotaOf(account);
  Room room;
  room.free = Minus(ledger.pool_bytes, ledger.PoolUsed());
  room.kept = ledger.KeptFrom(account);
  room.account_used = ledger.PoolUsedBy(account);
  // An account may always use its own guarantee; after a restart with other rules the guarantees
  // may exceed the room.
  const uint64_t own = std::min(room.free, Minus(quota.guarantee, room.account_used));
  room.bytes =
      std::min(std::max(own, Minus(room.free, room.kept)), Minus(quota.limit, room.account_used));
  return room;
}

namespace {

// "gpt, bert (without ranks, kept until 13:05)": the jobs that count for the user.
std::string JobsOf(const Ledger& ledger, uint32_t uid) {
  std::string text;
  for (const Holding& each : ledger.holdings) {
    if (!each.is_frozen && each.uid == uid)
      text += (text.empty() ? "" : ", ") + each.job + KeptText(each);
  }
  return text;
}

// Checks `bytes` of the pool for an account; `asked` begins the text of a refusal.
Status AdmitBytes(const Ledger& ledger, const std::string& account, uint64_t bytes,
                  const std::string& asked) {
  const Room room = RoomFor(ledger, account);
  if (bytes <= room.bytes) return Status();
  const uint64_t limit = ledger.QuotaOf(account).limit;
  if (const uint64_t left = Minus(limit, room.account_used); bytes > left) {
    return Status(ErrorId::kQuotaExceeded, asked + account + " may have " + Exact(left) +
                                               " more of its limit of " + FormatBytes(limit))
        .Why(Held(ledger, &Holding::pool_bytes, account));
  }
  std::string free = "free are " + Exact(room.bytes) + " of " + FormatBytes(ledger.pool_bytes);
  // Otherwise a refusal could say that nothing is free while the pool is empty.
  if (const uint64_t reserved = Minus(room.free, room.bytes);
      reserved > 0 && !TP_PLANTED("jobs.reserved_room_not_told")) {
    free += "; " + Exact(reserved) + " are not used and reserved for others";
  }
  return Status(ErrorId::kPoolFull, asked + free)
      .Why(Held(ledger, &Holding::pool_bytes) + Guaranteed(ledger, account));
}

}  // namespace

Status AdmitFrozen(Ledger* ledger, const Demand& demand) {
  if (demand.frozen_bytes == 0) return Status();
  const std::string asked = "job " + demand.job + " needs " + Exact(demand.frozen_bytes) +
                            " of host memory for frozen chunks; ";
  const std::string account = UserAccount(demand.uid);
  TP_RETURN_IF_ERROR(AdmitBytes(*ledger, account, demand.frozen_bytes, asked));

  ledger->holdings.push_back({.job = "what it brings",
                              .account = account,
                              .pool_bytes = demand.frozen_bytes,
                              .uid = demand.uid,
                              .is_frozen = true});
  return Status();
}

Status AdmitJob(const Ledger& ledger, const Demand& demand) {
  Places places{.what = "jobs", .all = ledger.jobs_max, .uid = demand.uid};
  places.of_user_max = demand.user_jobs_max;
  places.is_limited = demand.is_limited;
  for (const Holding& each : ledger.holdings) {
    places.used += each.is_frozen ? 0 : 1;
    places.own += !each.is_frozen && each.uid == demand.uid ? 1 : 0;
  }

  if (const Status place = AdmitPlace(places); !place.ok()) {
    return Status(place.id(), "job " + demand.job + " finds no place: " + place.what())
        .Why(JobsOf(ledger, demand.uid));
  }
  return AdmitBytes(
      ledger, demand.account, demand.pool_bytes,
      "job " + demand.job + " needs " + Exact(demand.pool_bytes) + " of host memory; ");
}

Status AdmitSpill(const Ledger& ledger, const Demand& demand) {
  const uint64_t limit = ledger.QuotaOf(demand.account).nvme_limit;
  const uint64_t left = Minus(limit, ledger.NvmeUsedBy(demand.account));
  if (demand.nvme_bytes <= left) return Status();
  return Status(ErrorId::kQuotaExceeded,
                "job " + demand.job + " needs " + Exact(demand.nvme_bytes) +
                    " on NVMe (two slots a chunk); " + demand.account + " may have " + Exact(left) +
                    " more of its limit there of " + FormatBytes(limit))
      .Why(Held(ledger, &Holding::nvme_bytes, demand.account));
}

Status AdmitRun(const Ledger& ledger, const Demand& demand) {
  uint32_t slots = 0, of_user = 0;
  for (const Holding& holding : ledger.holdings) {
    slots += holding.ranks;
    of_user += holding.uid == demand.uid ? holding.ranks : 0;
  }

  if (demand.ranks > demand.user_ranks_max - std::min(of_user, demand.user_ranks_max)) {
    return Status(ErrorId::kQuotaExceeded,
                  "the " + std::to_string(demand.ranks) + " ranks of job " + demand.job +
                      " would be more than the " + std::to_string(demand.user_ranks_max) +
                      " that user " + std::to_string(demand.uid) +
                      " may have, of which other jobs have " + std::to_string(of_user));
  }

  Places places{.what = "sessions", .all = ledger.sessions_max, .used = slots, .own = of_user};
  places.wanted = demand.ranks;
  places.uid = demand.uid;
  // An operator who lets one user have all sessions does so on purpose.
  places.is_limited = demand.is_limited && demand.user_ranks_max < ledger.sessions_max;
  if (const Status place = AdmitPlace(places); !place.ok()) {
    const std::string run =
        "job " + demand.job + " with " + std::to_string(demand.ranks) + " ranks";
    return Status(place.id(), run + " finds no place: " + place.what());
  }

  const uint64_t free = Minus(ledger.rcache_limit, ledger.RcacheUsed());
  if (demand.rcache_bytes <= free) return Status();
  return Status(ErrorId::kRcacheRefused,
                "the " + std::to_string(demand.ranks) + " ranks of job " + demand.job +
                    " ask for rCaches of " + Exact(demand.rcache_bytes) + "; free are " +
                    Exact(free) + " of " + FormatBytes(ledger.rcache_limit))
      .Why(Held(ledger, &Holding::rcache_bytes));
}

Status CouldEverFit(Ledger ledger, const Demand& demand) {
  ledger.holdings.clear();
  TP_RETURN_IF_ERROR(AdmitRun(ledger, demand));
  TP_RETURN_IF_ERROR(AdmitFrozen(&ledger, demand));
  return AdmitJob(ledger, demand);
}

Status CheckRule(const Ledger& ledger, const QuotaRule& rule, const std::string& job) {
  Ledger after = ledger;
  std::erase_if(after.quotas,
                [&](const QuotaRule& other) { return other.account == rule.account; });
  after.quotas.push_back(rule);
  for (Holding& holding : after.holdings) {
    if (holding.job == job) holding.account = rule.account;
  }

  const Status sound = CheckRules(ledger, after);
  return sound.ok()
             ? sound
             : Status(sound.id(), "with this quota for " + rule.account + ", " + sound.what())
                   .Why(sound.why());
}

Status CheckRules(const Ledger& before, const Ledger& after) {
  const uint64_t free = Minus(before.pool_bytes, before.PoolUsed());
  const uint64_t kept = after.KeptFrom("");
  // After a restart with other rules there may be too little already; a rule that makes it no worse
  // is accepted all the same.
  if (kept <= std::max(free, before.KeptFrom(""))) return Status();
  return Status(ErrorId::kQuotaRefused,
                Exact(kept) + " would be guaranteed and not used yet; free are " + Exact(free))
      .Why(Held(after, &Holding::pool_bytes) + Guaranteed(after, ""));
}

}  // namespace tidepool::memserver

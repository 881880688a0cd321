// QuotaEntry: one [[jobs.quota]] of the configuration file, as it is written; and what it means on
// this machine.
//
// One thread, before the server starts and when it reads its configuration again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/formats/toml_file.h"
#include "memserver/residency/quota.h"

namespace tidepool::memserver {

struct QuotaEntry {
  std::string match = {};                  // "user:alice", "user:1000" or "job:gpt"
  std::string guarantee = {}, limit = {};  // sizes or shares of the pool; empty: not given
  std::string nvme_limit = {};             // a size; empty: not given
  uint32_t weight = 1;
  Priority priority = Priority::kNormal;
  std::string where = {};  // "/etc/tidepool/memserver.toml:12"
};

// Is the key one of a [[jobs.quota]]?
bool IsQuotaKey(const std::string& key);
// The entries that settings "jobs.quota[0].match" and so on describe, in order. Errors:
// kConfigUnknownKey, kConfigBadValue.
Result<std::vector<QuotaEntry>> ReadQuotas(std::span<const FileSetting> settings);
// Names of users become numbers, shares become bytes. Errors: kConfigBadValue (no such user, two
// entries for one account).
Result<std::vector<QuotaRule>> ResolveQuotas(std::span<const QuotaEntry> entries,
                                             uint64_t pool_bytes);
// Can they hold in such a pool? Errors: kConfigBadValue (a guarantee above the limit, guarantees of
// more than the pool, those above).
Status CheckQuotas(std::span<const QuotaEntry> entries, uint64_t pool_bytes);
// The limit of each user without an entry; a share of 100 % is none.
Result<Quota> ResolveFallback(const std::string& limit, uint64_t pool_bytes);
// As they stand in a configuration file, each with its origin.
std::string PrintQuotas(std::span<const QuotaEntry> entries);

}  // namespace tidepool::memserver

// QuotaEntry: one [[jobs.quota]] of the configuration file, as written, and its meaning on this
// machine.
//
// One thread, before the server starts and when it reloads its configuration.
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

// True if the key belongs to a [[jobs.quota]].
bool IsQuotaKey(const std::string& key);
// Reads the entries from settings "jobs.quota[0].match" and so on, in order. Errors:
// kConfigUnknownKey, kConfigBadValue.
Result<std::vector<QuotaEntry>> ReadQuotas(std::span<const FileSetting> settings);
// Converts user names to numbers, and shares to bytes. Errors: kConfigBadValue (no such user, two
// entries for one account).
Result<std::vector<QuotaRule>> ResolveQuotas(std::span<const QuotaEntry> entries,
                                             uint64_t pool_bytes);
// Checks the entries against a pool size. Errors: kConfigBadValue (a guarantee above the limit,
// guarantees beyond the pool, those above).
Status CheckQuotas(std::span<const QuotaEntry> entries, uint64_t pool_bytes);
// The limit of each user without an entry; a share of 100 % is no limit.
Result<Quota> ResolveFallback(const std::string& limit, uint64_t pool_bytes);
// The entries in the form of a configuration file, each with its origin.
std::string PrintQuotas(std::span<const QuotaEntry> entries);

}  // namespace tidepool::memserver

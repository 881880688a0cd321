#include "memserver/config/quota_config.h"

#include <pwd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "base/text/json_quote.h"
#include "base/text/suggest.h"
#include "base/units.h"

namespace tidepool::memserver {
namespace {

constexpr std::string_view kPrefix = "jobs.quota[";
constexpr std::array<std::string_view, 6> kFields{"match",      "guarantee", "limit",
                                                  "nvme_limit", "weight",    "priority"};

Status Bad(const std::string& what, const std::string& where) {
  return Status(ErrorId::kConfigBadValue, what).Where(where);
}

bool Number(std::string_view text, uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

Status CheckMatch(const std::string& match, const std::string& where) {
  const size_t colon = match.find(':');
  const std::string kind = match.substr(0, colon);
  if (colon != std::string::npos && colon + 1 < match.size() && (kind == "user" || kind == "job"))
    return Status();
  return Bad("'" + match + "' names neither a user nor a job", where)
      .Why("the forms are \"user:alice\", \"user:1000\" and \"job:gpt\"");
}

// Takes one field of an entry. Checks only the form of sizes: shares are resolved when the server
// starts.
Status TakeField(std::string_view field, const FileSetting& setting, QuotaEntry* entry) {
  if (field == "match") {
    entry->match = setting.text;
    return CheckMatch(setting.text, setting.where);
  }
  if (field == "guarantee" || field == "limit") {
    (field == "guarantee" ? entry->guarantee : entry->limit) = setting.text;
    const auto size = ParseSizeOrShare(setting.text, kGiB);
    return size.ok() ? Status() : Bad(size.status().what(), setting.where);
  }

  if (field == "nvme_limit") {
    entry->nvme_limit = setting.text;
    const auto size = ParseSize(setting.text);
    return size.ok() ? Status() : Bad(size.status().what(), setting.where);
  }
  if (field == "weight") {
    if (Number(setting.text, &entry->weight) && entry->weight >= 1 && entry->weight <= kWeightMax)
      return Status();
    return Bad("the weight '" + setting.text + "' is not a whole number from 1 to " +
                   std::to_string(kWeightMax),
               setting.where);
  }

  if (field == "priority") {
    auto priority = PriorityFromName(setting.text);
    if (!priority.ok())
      return Bad(priority.status().what(), setting.where).Why(priority.status().why());
    entry->priority = *priority;
    return Status();
  }
  return Status(ErrorId::kConfigUnknownKey, "the key \"" + std::string(field) +
                                                "\" is not known in [[jobs.quota]]" +
                                                DidYouMean(field, kFields))
      .Where(setting.where);
}

Result<std::string> AccountOfUser(const std::string& name, const std::string& where) {
  uint32_t uid = 0;
  if (Number(name, &uid)) return UserAccount(uid);
  passwd record{};
  passwd* found = nullptr;
  std::array<char, 4096> texts{};
  getpwnam_r(name.c_str(), &record, texts.data(), texts.size(), &found);
  if (found != nullptr) return UserAccount(found->pw_uid);
  return Bad("there is no user '" + name + "' on this machine", where)
      .Fix("give the user's number, such as \"user:1000\"");
}

Result<std::string> AccountOf(const QuotaEntry& entry) {
  const std::string name = entry.match.substr(entry.match.find(':') + 1);
  return entry.match.starts_with("user:") ? AccountOfUser(name, entry.where)
                                          : Result<std::string>(JobAccount(name));
}

Result<uint64_t> BytesOf(const std::string& text, uint64_t pool_bytes, uint64_t fallback) {
  if (text.empty()) return fallback;
  return ParseSizeOrShare(text, pool_bytes);
}

}  // namespace

bool IsQuotaKey(const std::string& key) {
  return key.starts_with(kPrefix);
}

Result<std::vector<QuotaEntry>> ReadQuotas(std::span<const FileSetting> settings) {
  std::vector<QuotaEntry> entries;
  std::string last;
  for (const FileSetting& setting : settings) {
    const size_t end = setting.key.find("].");
    if (end == std::string::npos) return Bad("[[jobs.quota]] is a list of tables", setting.where);
    const std::string index = setting.key.substr(0, end);
    if (index != last) entries.emplace_back().where = setting.where;
    last = index;
    TP_RETURN_IF_ERROR(
        TakeField(std::string_view(setting.key).substr(end + 2), setting, &entries.back()));
  }

  for (const QuotaEntry& entry : entries) {
    if (entry.match.empty())
      return Bad("a [[jobs.quota]] says not whose it is: `match` is missing", entry.where);
  }
  return entries;
}

Result<std::vector<QuotaRule>> ResolveQuotas(std::span<const QuotaEntry> entries,
                                             uint64_t pool_bytes) {
  std::vector<QuotaRule> rules;
  for (const QuotaEntry& entry : entries) {
    QuotaRule rule;
    TP_ASSIGN_OR_RETURN(rule.account, AccountOf(entry));
    TP_ASSIGN_OR_RETURN(rule.quota.guarantee, BytesOf(entry.guarantee, pool_bytes, 0));
    TP_ASSIGN_OR_RETURN(rule.quota.limit, BytesOf(entry.limit, pool_bytes, kNoLimit));
    if (!entry.nvme_limit.empty()) {
      TP_ASSIGN_OR_RETURN(rule.quota.nvme_limit, ParseSize(entry.nvme_limit));
    }

    rule.quota.weight = entry.weight;
    rule.quota.priority = entry.priority;
    const auto same = [&rule](const QuotaRule& other) { return other.account == rule.account; };
    if (std::any_of(rules.begin(), rules.end(), same))
      return Bad("there are two quotas for " + rule.account, entry.where);
    rules.push_back(std::move(rule));
  }
  return rules;
}

Status CheckQuotas(std::span<const QuotaEntry> entries, uint64_t pool_bytes) {
  TP_ASSIGN_OR_RETURN(const std::vector<QuotaRule> rules, ResolveQuotas(entries, pool_bytes));
  uint64_t guaranteed = 0;
  for (size_t i = 0; i < rules.size(); ++i) {
    const Quota& quota = rules[i].quota;
    if (const Status sound = Validate(quota); !sound.ok())
      return Bad(sound.what(), entries[i].where);
    if (quota.guarantee > pool_bytes - guaranteed) {
      return Bad("the guarantees add up to more than the pool of " + FormatBytes(pool_bytes),
                 entries[i].where);
    }

    guaranteed += quota.guarantee;
  }
  return Status();
}

Result<Quota> ResolveFallback(const std::string& limit, uint64_t pool_bytes) {
  Quota quota;
  if (limit == "100%") return quota;
  TP_ASSIGN_OR_RETURN(quota.limit, ParseSizeOrShare(limit, pool_bytes));
  return quota;
}

std::string PrintQuotas(std::span<const QuotaEntry> entries) {
  std::string text;
  for (const QuotaEntry& entry : entries) {
    text += "\n[[jobs.quota]]  # " + entry.where + "\nmatch = " + QuoteJson(entry.match) + "\n";
    if (!entry.guarantee.empty()) text += "guarantee = " + QuoteJson(entry.guarantee) + "\n";
    if (!entry.limit.empty()) text += "limit = " + QuoteJson(entry.limit) + "\n";
    if (!entry.nvme_limit.empty()) text += "nvme_limit = " + QuoteJson(entry.nvme_limit) + "\n";

    text += "weight = " + std::to_string(entry.weight) + "\npriority = \"" +
            NameOf(entry.priority) + "\"\n";
  }
  return text;
}

}  // namespace tidepool::memserver

#include "memserver/residency/quota.h"

#include <algorithm>
#include <array>

#include "base/units.h"

namespace tidepool::memserver {
namespace {

constexpr std::array<const char*, kPriorities> kPriorityNames{"low", "normal", "high"};

}  // namespace

const char* NameOf(Priority priority) {
  return kPriorityNames[static_cast<size_t>(priority)];
}

Result<Priority> PriorityFromName(std::string_view name) {
  for (size_t i = 0; i < kPriorityNames.size(); ++i) {
    if (name == kPriorityNames[i]) return static_cast<Priority>(i);
  }
  return Status(ErrorId::kConfigBadValue, "'" + std::string(name) + "' is no priority")
      .Why("accepted are low, normal, high");
}

Status Validate(const Quota& quota) {
  if (quota.guarantee > quota.limit) {
    return Status(ErrorId::kConfigBadValue, "a guarantee of " + FormatBytes(quota.guarantee) +
                                                " is more than the limit of " +
                                                FormatBytes(quota.limit));
  }
  if (quota.weight >= 1 && quota.weight <= kWeightMax) return Status();
  return Status(ErrorId::kConfigBadValue, "the weight " + std::to_string(quota.weight) +
                                              " is not from 1 to " + std::to_string(kWeightMax));
}

Quota Changed(Quota quota, const QuotaChange& change) {
  quota.guarantee = change.guarantee.value_or(quota.guarantee);
  quota.limit = change.limit.value_or(quota.limit);
  quota.nvme_limit = change.nvme_limit.value_or(quota.nvme_limit);
  quota.weight = change.weight.value_or(quota.weight);
  quota.priority = change.priority.value_or(quota.priority);
  return quota;
}

std::string UserAccount(uint32_t uid) {
  return "user:" + std::to_string(uid);
}

std::string JobAccount(const std::string& name) {
  return "job:" + name;
}

QuotaBook::QuotaBook(const std::vector<QuotaRule>& rules, const Quota& fallback)
    : fallback_(fallback) {
  for (const QuotaRule& rule : rules) configured_[rule.account] = rule.quota;
}

std::string QuotaBook::AccountOf(const std::string& job, uint32_t uid) const {
  const std::string own = JobAccount(job);
  return configured_.contains(own) || set_.contains(own) ? own : UserAccount(uid);
}

Quota QuotaBook::QuotaOf(const std::string& account) const {
  if (const auto it = set_.find(account); it != set_.end()) return it->second;
  const auto it = configured_.find(account);
  return it == configured_.end() ? fallback_ : Shared(*it);
}

// The rule of an account, with the share set for a job if the account belongs to that job alone.
Quota QuotaBook::Shared(const std::pair<const std::string, Quota>& rule) const {
  const auto share = std::find_if(shares_.begin(), shares_.end(), [&](const auto& each) {
    return JobAccount(each.first) == rule.first;
  });
  return share == shares_.end() ? rule.second : Changed(rule.second, share->second);
}

Quota QuotaBook::QuotaFor(const std::string& job, uint32_t uid) const {
  const Quota quota = QuotaOf(AccountOf(job, uid));
  const auto it = shares_.find(job);
  return it == shares_.end() ? quota : Changed(quota, it->second);
}

void QuotaBook::SetJob(const std::string& job, const Quota& quota) {
  set_[JobAccount(job)] = quota;
  shares_.erase(job);
}

void QuotaBook::SetShare(const std::string& job, uint32_t weight, Priority priority) {
  if (const auto own = set_.find(JobAccount(job)); own != set_.end()) {
    own->second.weight = weight;
    own->second.priority = priority;
    return;
  }
  shares_[job] = {.weight = weight, .priority = priority};
}

void QuotaBook::ForgetJob(const std::string& job) {
  set_.erase(JobAccount(job));
  shares_.erase(job);
}

QuotaBook QuotaBook::Reconfigured(const std::vector<QuotaRule>& rules,
                                  const Quota& fallback) const {
  QuotaBook book(rules, fallback);
  book.set_ = set_;
  book.shares_ = shares_;
  return book;
}

std::vector<QuotaRule> QuotaBook::Rules() const {
  std::map<std::string, Quota> all = set_;
  for (const auto& rule : configured_) all.emplace(rule.first, Shared(rule));  // set rules win
  std::vector<QuotaRule> rules;
  for (const auto& [account, quota] : all) rules.push_back({account, quota});
  return rules;
}

}  // namespace tidepool::memserver

// Quota and QuotaBook: what each user or job may take of the pool, and its share of the workers and
// copies.
//
// One thread owns a book (the serve loop); Quota and QuotaRule are values. A job belongs to one
// *account*: that of a rule for its name ("job:gpt"), else that of its user ("user:1000"), which
// all jobs of the user without a rule of their own share.
// Invariant: every account has a quota: that of its rule, else the book's fallback.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tidepool::memserver {

// Scheduling priority.
enum class Priority : uint8_t { kLow = 0, kNormal = 1, kHigh = 2 };
inline constexpr uint32_t kPriorities = 3;
const char* NameOf(Priority priority);  // "low", "normal", "high"
// Parses a name. Errors: kConfigBadValue.
Result<Priority> PriorityFromName(std::string_view name);

inline constexpr uint64_t kNoLimit = UINT64_MAX;
// Largest weight: a job may have this many times the share of another one of its priority.
inline constexpr uint32_t kWeightMax = 100;

struct Quota {
  uint64_t guarantee = 0;          // bytes of the pool reserved for it
  uint64_t limit = kNoLimit;       // most bytes of the pool
  uint64_t nvme_limit = kNoLimit;  // most bytes on NVMe; 0: it does not spill
  // Weight for workers and copies, against others of the same priority; 1 to kWeightMax.
  uint32_t weight = 1;
  Priority priority = Priority::kNormal;
  friend bool operator==(const Quota&, const Quota&) = default;
};
// Checks a quota. Errors: kConfigBadValue (a guarantee above the limit, a weight out of range).
Status Validate(const Quota& quota);

struct QuotaRule {
  std::string account;  // "user:1000" or "job:gpt"
  Quota quota;
  friend bool operator==(const QuotaRule&, const QuotaRule&) = default;
};

// Changes of a quota; an empty member leaves its value.
struct QuotaChange {
  std::optional<uint64_t> guarantee = {}, limit = {}, nvme_limit = {};
  std::optional<uint32_t> weight = {};
  std::optional<Priority> priority = {};
  // True if memory limits change; else the job stays in its account.
  bool is_of_memory() const { return guarantee || limit || nvme_limit; }
};
Quota Changed(Quota quota, const QuotaChange& change);

// "user:1000" and "job:gpt".
std::string UserAccount(uint32_t uid);
std::string JobAccount(const std::string& name);

class QuotaBook {
 public:
  QuotaBook() = default;
  // Rules as configured; a later one for an account wins. `fallback` is for users without a rule.
  QuotaBook(const std::vector<QuotaRule>& rules, const Quota& fallback);

  // The account of a job, and the quota of an account.
  std::string AccountOf(const std::string& job, uint32_t uid) const;
  Quota QuotaOf(const std::string& account) const;
  // The quota of the job's account, with the weight and priority that were set for this job.
  Quota QuotaFor(const std::string& job, uint32_t uid) const;
  // Gives the job an account of its own, until ForgetJob.
  void SetJob(const std::string& job, const Quota& quota);
  // Leaves the job in its account but gives it a weight and a priority of its own, until ForgetJob
  // or SetJob. An account of this job alone gets them too.
  void SetShare(const std::string& job, uint32_t weight, Priority priority);
  void ForgetJob(const std::string& job);
  // The same book with other rules and another fallback from the configuration; values set for jobs
  // remain.
  QuotaBook Reconfigured(const std::vector<QuotaRule>& rules, const Quota& fallback) const;
  // Accounts that have a rule or a set quota, with their quotas.
  std::vector<QuotaRule> Rules() const;

 private:
  Quota Shared(const std::pair<const std::string, Quota>& rule) const;

  std::map<std::string, Quota> configured_, set_;  // by account
  std::map<std::string, QuotaChange> shares_;      // by job
  Quota fallback_;
};

}  // namespace tidepool::memserver

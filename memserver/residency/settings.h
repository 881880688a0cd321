// LiveSettings, LimitSettings and TimeSettings: the groups of the configuration that several rooms
// of memserver read. Each setting is declared here once and travels in its group.
//
// Any thread; values. Flags, file keys and defaults for users are in
// memserver/config/setting_table.cpp, which fills every member. The initial values here suit tests.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/log.h"
#include "memserver/residency/placement.h"
#include "memserver/residency/quota.h"

namespace tidepool::memserver {

inline constexpr uint32_t kAutomatic = UINT32_MAX;  // for a count: chosen when memserver starts

// Settings that a reload may change while memserver runs.
struct LiveSettings {
  LogLevel log_level = LogLevel::kInfo;
  StatesOn states_on = StatesOn::kAuto;  // of new jobs
  // Most jobs at once: each costs a table row and is visited once a turn, so this bounds an idle
  // turn to a few microseconds.
  uint32_t jobs_max = 64;
  Quota quota_fallback = {};  // of users without a rule; set once the pool's size is known
  friend bool operator==(const LiveSettings&, const LiveSettings&) = default;
};

// Limits on ranks and jobs. Limits of one user do not bind root and the owner.
struct LimitSettings {
  // Attached ranks at once: three descriptors and about 300 KiB each; below the usual limit of
  // 1,024 descriptors.
  uint32_t sessions_max = 256;
  uint32_t user_sessions_max = 256;     // of one user; kAutomatic until memserver starts
  uint32_t user_jobs_max = kAutomatic;  // of one user; 0: half of jobs_max, kAutomatic: all

  // The most jobs of one user, if `jobs_max` may run at once.
  uint32_t UserJobs(uint32_t jobs_max) const {
    return user_jobs_max != 0 ? user_jobs_max : std::max(1U, jobs_max / 2);
  }
};

// Waits of the serve loop: for ranks that come back, and for work.
struct TimeSettings {
  int64_t lease_ns = 0;  // how long a job without ranks is kept; 0: not at all
  int64_t spin_ns = -1;  // idle time before the loop sleeps; negative: by the number of CPUs
};

}  // namespace tidepool::memserver

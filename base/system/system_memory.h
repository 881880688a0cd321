// How much memory this process may still take: the least of the machine's MemAvailable and every
// cgroup limit above this process (v1 and v2).
//
// Any thread. Call before touching memory (fault F26: fallocate on a memfd does not fail, but
// drives the machine out of memory).
#pragma once

#include <cstdint>
#include <string>

namespace tidepool {

// The memory left for this process, and its tightest limit.
struct MemoryBudget {
  uint64_t bytes_available = 0;  // least of the limits below
  uint64_t bytes_total = 0;      // of the machine, or of the cgroup if that is less
  std::string limited_by;        // "MemAvailable", or the cgroup file with the least
};

// `proc_root` and `cgroup_root` are "/proc" and "/sys/fs/cgroup"; a test gives folders of its own.
MemoryBudget ReadMemoryBudget(const std::string& proc_root = "/proc",
                              const std::string& cgroup_root = "/sys/fs/cgroup");

}  // namespace tidepool

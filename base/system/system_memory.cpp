#include "base/system/system_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace tidepool {
namespace {

// The value in bytes of a line "Name:  123 kB" of meminfo; 0 if it is missing.
uint64_t MeminfoBytes(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    uint64_t kib = 0;
    if (word == name + ":" && file >> kib) return kib * 1024;
  }
  return 0;
}

// Reads a file with one number; false for "max", a missing file, or v1's "no limit" (near 2^63).
bool ReadNumber(const std::string& path, uint64_t* value) {
  std::ifstream file(path);
  return static_cast<bool>(file >> *value) && *value < (uint64_t{1} << 60);
}

struct CgroupFiles {
  std::string folder, limit, usage;
};

// Page cache of the group in bytes: it counts as used, but the kernel reclaims it on demand. 0 if
// unknown.
uint64_t CacheBytes(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  std::string name;
  uint64_t value = 0, own = 0, whole = 0;
  while (file >> name >> value) {
    if (name == "inactive_file" || name == "active_file") own += value;
    // v1: including descendant groups.
    if (name == "total_inactive_file" || name == "total_active_file") whole += value;
  }
  return std::max(own, whole);
}

void ApplyLimit(const CgroupFiles& files, MemoryBudget* budget) {
  uint64_t limit = 0, usage = 0;
  if (!ReadNumber(files.folder + "/" + files.limit, &limit)) return;
  ReadNumber(files.folder + "/" + files.usage, &usage);
  usage -= std::min(usage, CacheBytes(files.folder));
  const uint64_t left = limit > usage ? limit - usage : 0;
  if (limit < budget->bytes_total) budget->bytes_total = limit;
  if (left < budget->bytes_available) {
    budget->bytes_available = left;
    budget->limited_by = files.folder + "/" + files.limit;
  }
}

// Applies the limits of `path` and of every folder above it, down to the root of the hierarchy.
void ApplyHierarchy(const std::string& root, std::string path, const CgroupFiles& names,
                    MemoryBudget* budget) {
  while (true) {
    ApplyLimit({root + path, names.limit, names.usage}, budget);
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return;
    path.resize(slash);
  }
}

}  // namespace

MemoryBudget ReadMemoryBudget(const std::string& proc_root, const std::string& cgroup_root) {
  MemoryBudget budget;
  budget.bytes_available = MeminfoBytes(proc_root + "/meminfo", "MemAvailable");
  budget.bytes_total = MeminfoBytes(proc_root + "/meminfo", "MemTotal");
  budget.limited_by = "MemAvailable";

  std::ifstream groups(proc_root + "/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    // "4:memory:/a/b" (v1) or "0::/a/b" (v2)
    std::istringstream parts(line);
    std::string number, controllers, path;
    std::getline(parts, number, ':');
    std::getline(parts, controllers, ':');
    std::getline(parts, path);
    if (path == "/") path.clear();

    if (controllers == "memory") {
      ApplyHierarchy(cgroup_root + "/memory", path,
                     {"", "memory.limit_in_bytes", "memory.usage_in_bytes"}, &budget);
    } else if (controllers.empty()) {
      ApplyHierarchy(cgroup_root, path, {"", "memory.max", "memory.current"}, &budget);
    }
  }

  return budget;
}

}  // namespace tidepool

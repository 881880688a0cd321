// MemoryCgroup: a cgroup with a limit on memory, of either version, for programs that a test
// starts. `missing()` says why there is none.
//
// One thread. Its processes have ended when it ends.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/clock.h"

namespace tidepool::testing {

class MemoryCgroup {
 public:
  explicit MemoryCgroup(uint64_t bytes) {
    namespace fs = std::filesystem;
    const std::string name = "/tidepool-test-" + std::to_string(getpid());
    const fs::path root = "/sys/fs/cgroup";
    is_v2_ = Text(root / "cgroup.controllers").find("memory") != std::string::npos;
    if (is_v2_) Write(root / "cgroup.subtree_control", "+memory");  // it may be there already
    path_ = (is_v2_ ? root.string() : (root / "memory").string()) + name;
    std::error_code error;
    const bool made =
        fs::exists(is_v2_ ? root : root / "memory") && fs::create_directory(path_, error);
    const bool limited = made && Write(path_ + (is_v2_ ? "/memory.max" : "/memory.limit_in_bytes"),
                                       std::to_string(bytes));
    if (is_v2_) Write(path_ + "/memory.swap.max", "0");
    if (!limited) missing_ = "a memory cgroup that this process may make (" + path_ + ")";
  }
  ~MemoryCgroup() {
    SteadyClock clock;  // processes that were killed take a moment to end
    for (int tries = 0; rmdir(path_.c_str()) != 0 && errno == EBUSY && tries < 1000; ++tries)
      clock.SleepNs(10 * kNsPerMs);
  }
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;

  const std::string& missing() const { return missing_; }
  // The command, run in the cgroup.
  std::vector<std::string> Command(const std::vector<std::string>& command) const {
    std::vector<std::string> words{"/bin/sh", "-c",
                                   "echo $$ > " + path_ + "/cgroup.procs && exec \"$@\"", "sh"};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
  // How many of its processes the kernel has killed for want of memory.
  uint64_t Killed() const {
    const std::string text = Text(path_ + (is_v2_ ? "/memory.events" : "/memory.oom_control"));
    const size_t at = text.rfind("\noom_kill ");
    return at == std::string::npos ? UINT64_MAX : std::stoull(text.substr(at + 10));
  }

 private:
  static std::string Text(const std::filesystem::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static bool Write(const std::filesystem::path& path, const std::string& text) {
    std::ofstream file(path);
    file << text << std::flush;
    return file.good();
  }
  bool is_v2_ = false;
  std::string path_, missing_;
};

}  // namespace tidepool::testing

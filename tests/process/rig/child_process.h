// ChildProcess: a program started by a test, with its output in files, its end waited for with a
// limit, and never left behind.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace tidepool::testing {

// What "at once" means on a machine that has other things to do, above all write to its disk:
// whatever is waited for in vain takes longer. How long it takes is for benchmarks to say.
inline constexpr int64_t kPromptNs = 20'000'000'000;

// A directory of its own below the system's temporary directory, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct ProcessEnd {
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;
};

// Whom only root can start programs as. Users and groups need no names.
struct OtherUser {
  uint32_t uid = 0;  // and the number of its own group
  std::vector<gid_t> groups = {};
};

class ChildProcess {
 public:
  // `environment` is added to this process's own. Inherited are the standard descriptors and
  // `keep_fds`, under the same numbers. Another user needs no way to the program; where it cannot
  // be started the exit code is 127.
  ChildProcess(const std::vector<std::string>& command,
               const std::vector<std::string>& environment = {},
               const std::vector<int>& keep_fds = {},
               const std::optional<OtherUser>& user = std::nullopt);
  // Kills it when it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // None when it has not ended in time.
  std::optional<ProcessEnd> Wait(int64_t timeout_ns);
  // Everything written so far, stdout and stderr. Folded lines of errors are put together again.
  std::string Output() const;
  // Waits until the output holds `text`; false after the limit or when the process has ended
  // without it.
  bool WaitForOutput(const std::string& text, int64_t timeout_ns);

 private:
  pid_t pid_ = -1;
  UniqueFd output_;  // a memfd that the child writes to
  std::optional<ProcessEnd> end_;
};

// The body of an HTTP answer of the admin socket; empty when there is none.
std::string AskAdmin(const std::string& socket_dir, const std::string& path);
// The whole number behind "key": in a JSON text; -1 when the key is missing.
int64_t NumberIn(const std::string& json, const std::string& key);

}  // namespace tidepool::testing

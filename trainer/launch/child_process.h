// ChildProcess: a program that this process starts, waits for, and may signal.
//
// One thread per object; move only. A child runs in its own process group: Ctrl-C on the terminal
// reaches only this process, which decides what to tell its children. The destructor kills
// (SIGKILL, the whole group) and reaps a child that still runs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/launch/rank_place.h"

namespace tidepool::trainer {

// What to start.
struct ChildOptions {
  std::string program;                 // a path, or a name to search in PATH
  std::vector<std::string> arguments;  // without the program's name
  Environment environment;             // complete
  int stdout_fd = -1, stderr_fd = -1;  // -1: as ours; the child reads /dev/null
  std::vector<int> passed_fds;         // stay open in the child under the same numbers
  bool own_session = false;            // detached from our terminal, too
  // Kills the child with SIGKILL when the thread that started it ends, however it ends.
  bool killed_with_parent = false;
};

class ChildProcess {
 public:
  // Returns when the program has been started. Errors: kFileUnreadable (it cannot be executed),
  // kInternal (no process or descriptor left).
  static Result<ChildProcess> Start(const ChildOptions& options);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // The exit code, 128 + signal if it was killed, nullopt while it runs. Never blocks.
  std::optional<int> TryWait();
  // Like TryWait, but waits up to `timeout_ns`.
  std::optional<int> WaitFor(int64_t timeout_ns, Clock* clock);
  // Signals every process of the group; does nothing after the child has ended.
  void Signal(int signal);
  // Abandons the child: this object no longer waits for it or kills it.
  void Forget() { pid_ = -1; }

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  void End();
  pid_t pid_ = -1;
  std::optional<int> code_;
};

// The program `name` beside our own executable, else in PATH. Errors: kFileUnreadable.
Result<std::string> FindProgramBeside(const std::string& name);

}  // namespace tidepool::trainer

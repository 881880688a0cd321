// ChildProcess: one program that this process started, waits for, and may signal.
//
// One thread per object; move only. A child runs in a process group of its own: Ctrl-C on the
// terminal reaches this process alone, which decides what its children are told. The destructor
// kills (SIGKILL, the whole group) and collects a child that still runs.
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

// What is started.
struct ChildOptions {
  std::string program;                 // a path, or a name that is looked for in PATH
  std::vector<std::string> arguments;  // without the program's name
  Environment environment;             // the whole of it
  int stdout_fd = -1, stderr_fd = -1;  // -1: as ours; the child reads /dev/null
  std::vector<int> passed_fds;         // these stay open in the child under the same numbers
  bool own_session = false;            // away from our terminal too
  // SIGKILL when our thread that started it ends, however it ends.
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
  // Its exit code, 128 + signal when it was killed, nothing while it runs. Never blocks.
  std::optional<int> TryWait();
  // As TryWait, waiting up to `timeout_ns`.
  std::optional<int> WaitFor(int64_t timeout_ns, Clock* clock);
  // To every process of its group; nothing when it has ended.
  void Signal(int signal);

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  void End();
  pid_t pid_ = -1;
  std::optional<int> code_;
};

// The program `name` beside our own executable, else in PATH. Errors: kFileUnreadable.
Result<std::string> FindProgramBeside(const std::string& name);

}  // namespace tidepool::trainer

// SpawnSession: starts a program in a session of its own, so that neither Ctrl-C nor the end of the
// starter takes it along; IsolateProcess: what such a program does first.
//
// Any thread, also of a process with many: between fork and exec run only calls that are safe there
// (posix_spawn sees to it).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::memserver {

// What is started.
struct SessionCommand {
  std::string program;                   // a path, or a name to be found in PATH
  std::vector<std::string> argv;         // with argv[0]
  std::vector<std::string> environment;  // NAME=value
  // Becomes descriptor kInheritedFd; every other one should be close-on-exec.
  int inherited_fd = -1;
  // SIGINT, SIGHUP and SIGTERM wait until the program asks for them.
  bool signals_blocked = false;
};

inline constexpr int kInheritedFd = 3;

// The pid of the child, which starts with default signal dispositions. stdin, stdout and stderr are
// inherited. Errors: kKeeperFailed.
Result<pid_t> SpawnSession(const SessionCommand& command);

// Leaves the terminal and every descriptor but stdout, stderr and `kept_fd`, which becomes
// close-on-exec; ignores SIGINT, SIGHUP and SIGPIPE; no core dumps; the out-of-memory killer looks
// elsewhere first. Called at the start of main, in the process's only thread. `name` is what ps
// shows.
void IsolateProcess(const char* name, int kept_fd);

// This process's environment; `again`: for one that replaces a process that ended, so that a kill
// point does not end it too (TIDEPOOL_KILL_AT is left out unless TIDEPOOL_KILL_AGAIN=1).
std::vector<std::string> EnvironmentFor(bool again);
// The command line of this process, with the program's path in front: what a keeper executes again.
std::vector<std::string> OwnCommand();

}  // namespace tidepool::memserver

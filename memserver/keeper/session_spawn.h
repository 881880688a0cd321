// SpawnSession: starts a program in a session of its own, so that neither Ctrl-C nor the end of the
// starter ends it; IsolateProcess: the first call of such a program.
//
// Any thread, also in a multi-threaded process: between fork and exec only calls run that are safe
// there (posix_spawn ensures it).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::memserver {

// The program to start.
struct SessionCommand {
  std::string program;                   // a path, or a name to be found in PATH
  std::vector<std::string> argv;         // with argv[0]
  std::vector<std::string> environment;  // NAME=value
  // Becomes descriptor kInheritedFd; every other one should be close-on-exec.
  int inherited_fd = -1;
  // SIGINT, SIGHUP and SIGTERM are blocked until the program unblocks them.
  bool signals_blocked = false;
};

inline constexpr int kInheritedFd = 3;

// Returns the pid of the child, which starts with default signal dispositions. stdin, stdout and
// stderr are inherited. Errors: kKeeperFailed.
Result<pid_t> SpawnSession(const SessionCommand& command);

// Leaves the terminal and closes every descriptor except stdout, stderr and `kept_fd`, which
// becomes close-on-exec; ignores SIGINT, SIGHUP and SIGPIPE; disables core dumps; makes the process
// a late choice of the out-of-memory killer. Called at the start of main, in the process's only
// thread. ps shows `name`.
void IsolateProcess(const char* name, int kept_fd);

// This process's environment. `again`: for a process that replaces one that ended, so that a kill
// point does not end it too (TIDEPOOL_KILL_AT is left out unless TIDEPOOL_KILL_AGAIN=1).
std::vector<std::string> EnvironmentFor(bool again);
// The command line of this process, with the program's path in front: what a keeper executes again.
std::vector<std::string> OwnCommand();

}  // namespace tidepool::memserver

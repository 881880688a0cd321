// MemserverProcess: the real program, started with a directory of its own and ended by SIGTERM.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/process/rig/child_process.h"

namespace tidepool::testing {

// Processes whose command line has `text` somewhere.
std::vector<pid_t> ProcessesNaming(const std::string& text);
// The keeper of a socket directory, by its name and its command line; 0 when there is none.
pid_t FindKeeper(const std::string& socket_dir);
// The memserver of a socket directory, by its lock file; 0 when there is none.
pid_t FindServer(const std::string& socket_dir);

// What memserver and its keeper have open: kinds, in order, such as "socket" and the names of
// memfds. Only root may look at other processes that dump no core: for another user both are empty,
// and equal.
struct OpenDescriptors {
  std::vector<std::string> of_server, of_keeper;
  friend bool operator==(const OpenDescriptors&, const OpenDescriptors&) = default;
  std::string Text() const;
};
// The descriptors of a daemon that is ready and that nobody is attached to, once they have stayed
// the same for 50 ms.
OpenDescriptors SettledDescriptorsOf(const std::string& socket_dir);
// Waits until they are `expected` again; returns those seen last.
OpenDescriptors WaitForDescriptors(const std::string& socket_dir, const OpenDescriptors& expected,
                                   int64_t timeout_ns);

// Kills whatever serves the directory: keeper first, then memserver. For the end of a test that
// started a keeper.
void KillDaemon(const std::string& socket_dir);

class MemserverProcess {
 public:
  // Waits until it is ready; a pool of 32 MiB, one worker and no lease unless `more` says
  // otherwise.
  explicit MemserverProcess(const std::vector<std::string>& more = {});
  ChildProcess& process() { return *process_; }
  const std::string& socket_dir() const { return directory_.path(); }
  // Sends SIGTERM; true when it ended with exit code 0 within kPromptNs and left nothing in its
  // directory.
  bool StopsCleanly();

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<ChildProcess> process_;
};

// A command line of memserver with small sizes.
std::vector<std::string> MemserverCommand(const std::string& socket_dir,
                                          const std::vector<std::string>& more = {});

}  // namespace tidepool::testing
